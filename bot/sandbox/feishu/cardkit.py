"""CardKit: card entities and every operation on them (feishu.md §5). Owns the cards.

Each call follows the same gate: card, expiry, parameters, uuid, rate, sequence, click in progress; then its own rules. A refused
operation changes nothing and does not use up its sequence.
"""

from __future__ import annotations

import copy
import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from bot.sandbox.feishu import elements
from bot.sandbox.feishu.card import Card, CardOp
from bot.sandbox.feishu.cardschema import CardRules, Json, tagged
from bot.sandbox.feishu.elements import need
from bot.sandbox.feishu.errors import ApiError, CardError

if TYPE_CHECKING:
    from bot.sandbox.feishu.config import SandboxConfig
    from bot.sandbox.feishu.judge import Judge
    from bot.sandbox.feishu.limits import RateLimits
    from bot.sandbox.feishu.world import World

_INT32 = 2**31 - 1
_UUID_CHARS = 64


def parse_json(text: str, code: int) -> Any:
    """Decode a stringified parameter. Raises CardError(code)."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise CardError(code, f"not JSON: {error}") from None


class CardKit:
    """Owner of all card entities of the app."""

    def __init__(
        self, config: SandboxConfig, world: World, judge: Judge, rules: CardRules, rates: RateLimits
    ) -> None:
        self._config = config
        self._world = world
        self._judge = judge
        self._rules = rules
        self._rates = rates

    # -- calls -------------------------------------------------------------------------------------------------------
    def create(self, body: Json) -> Json:
        """POST /cards. Does not use up a sequence."""
        if need(body, "type", str) != "card_json":
            raise ApiError(10002, "only card_json is played here")
        data = need(body, "data", str)
        card_json = parse_json(data, 200220)
        self._rules.check(card_json)
        card_id = str(7_000_000_000_000_000_000 + secrets.randbelow(10**18))
        self._world.cards[card_id] = Card(card_id, card_json, self._config.clock())
        self._look_at(card_json, card_id)
        return {"card_id": card_id}

    def content(self, card_id: str, element_id: str, body: Json) -> Json:
        """PUT …/elements/:id/content: the whole text so far; needs streaming on (300309)."""
        text = body.get("content")
        card = self._gate(
            card_id, body, "content", element_id, text if isinstance(text, str) else ""
        )
        if not isinstance(text, str) or not 1 <= len(text) <= self._config.limits.content_chars:
            raise ApiError(10002, "content must have 1 to 100000 characters")
        if not card.streaming:
            if card.timed_out and self._config.late_updates == "silent":
                card.ops[-1] = replace(card.ops[-1], code=0)
                return {}
            if card.closed_by_app:
                self._judge.note(
                    "update_after_close", f"card {card_id} sequence {body['sequence']}"
                )
            raise ApiError(self._config.streaming_timeout_code if card.timed_out else 300309)
        element = card.find(element_id)
        if element is None:
            raise ApiError(300313, f"no element {element_id}")
        if element["tag"] not in {"markdown", "plain_text"}:
            raise ApiError(300310)
        before = element["content"]
        element["content"] = text
        try:
            self._rules.check_text(element["tag"], text)
            self._rules.check_tables(card.data)
            self._rules.check_size(card.data)
        except CardError:
            element["content"] = before
            raise
        self._judge.content_call(card, element_id, text)
        if element["tag"] == "markdown":
            self._judge.look_at_text(text, f"card {card_id}")
        card.streamed[element_id] = text
        return self._done(card, body)

    def settings(self, card_id: str, body: Json) -> Json:
        """PATCH …/settings: config and card_link."""
        text = need(body, "settings", str)
        return self._change(
            card_id, body, "settings", lambda card: self._settings(card, parse_json(text, 300122))
        )

    def update(self, card_id: str, body: Json) -> Json:
        """PUT /cards/:id: the whole card."""
        card = self._gate(card_id, body, "update")
        inner = need(body, "card", dict)
        if inner.get("type") != "card_json":
            raise ApiError(10002, "card.type")
        data = parse_json(need(inner, "data", str), 200220)
        self._rules.check(data)
        self._look_at(data, card_id)
        card.take(data, self._config.clock())
        return self._done(card, body)

    def add_elements(self, card_id: str, body: Json) -> Json:
        """POST …/elements."""
        params = {**body, "elements": need(body, "elements", str)}
        return self._change(card_id, body, "add_elements", lambda card: self._add(card, params))

    def replace_element(self, card_id: str, element_id: str, body: Json) -> Json:
        """PUT …/elements/:id."""
        params = {"element_id": element_id, "element": need(body, "element", str)}
        return self._change(
            card_id, body, "replace_element", lambda card: self._replace(card, params)
        )

    def patch_element(self, card_id: str, element_id: str, body: Json) -> Json:
        """PATCH …/elements/:id."""
        params = {"element_id": element_id, "partial_element": need(body, "partial_element", str)}
        return self._change(card_id, body, "patch_element", lambda card: self._patch(card, params))

    def delete_element(self, card_id: str, element_id: str, body: Json) -> Json:
        """DELETE …/elements/:id."""
        return self._change(
            card_id, body, "delete_element", lambda card: elements.delete(card, element_id)
        )

    def batch_update(self, card_id: str, body: Json) -> Json:
        """POST …/batch_update: all of its actions or none."""
        text = need(body, "actions", str)
        return self._change(
            card_id, body, "batch_update", lambda card: self._batch(card, parse_json(text, 10002))
        )

    # -- used by messages and callbacks ------------------------------------------------------------------------------
    def claim(self, card_id: Any) -> Card:
        """The entity to be sent: known, alive, not sent before (300311)."""
        card = self._live(card_id if isinstance(card_id, str) else "")
        if card.message is not None:
            raise CardError(300311, "a card entity can be sent once")
        return card

    def replace_by_callback(self, card: Card, data: Json) -> None:
        """The card in the reply to a click. The caller has checked that streaming is off."""
        self._rules.check(data)
        self._look_at(data, card.id)
        card.take(data, self._config.clock())
        self._shown(card)

    # -- inside ------------------------------------------------------------------------------------------------------
    def _live(self, card_id: str) -> Card:
        card = self._world.cards.get(card_id)
        if card is None:
            raise CardError(200740, card_id)
        now = self._config.clock()
        if now - card.created_at >= self._config.limits.card_life_s:
            raise CardError(200750)
        card.expire_streaming(now, self._config.limits.streaming_s)
        return card

    def _gate(
        self, card_id: str, body: Json, kind: str, element_id: str = "", text: str = ""
    ) -> Card:
        card = self._live(card_id)
        sequence = body.get("sequence")
        known = sequence if isinstance(sequence, int) else -1
        card.ops.append(CardOp(self._config.clock(), kind, known, -1, element_id, text))
        if (
            not isinstance(sequence, int)
            or isinstance(sequence, bool)
            or not 1 <= sequence <= _INT32
        ):
            raise ApiError(10002, "sequence must be an int32 from 1")
        uuid = body.get("uuid")
        if uuid is not None and (not isinstance(uuid, str) or not 1 <= len(uuid) <= _UUID_CHARS):
            raise ApiError(10002, "uuid must have 1 to 64 characters")
        if uuid in card.uuids:
            raise ApiError(200770)
        self._rates.check_card(card_id)
        if sequence <= card.sequence:
            raise ApiError(300317, f"{sequence} after {card.sequence}")
        if card.click_lock:
            raise ApiError(200810)
        return card

    def refused(self, card_id: str, code: int) -> None:
        """Write the outcome of the newest operation into the card's timeline."""
        card = self._world.cards.get(card_id)
        if card is not None and card.ops and card.ops[-1].code == -1:
            card.ops[-1] = replace(card.ops[-1], code=code)

    def _done(self, card: Card, body: Json) -> Json:
        card.sequence = body["sequence"]
        if body.get("uuid"):
            card.uuids.add(body["uuid"])
        card.ops[-1] = replace(card.ops[-1], code=0)
        self._shown(card)
        return {}

    def _shown(self, card: Card) -> None:
        if card.message is not None:
            card.message.updated_ms = self._world.now_ms()
            self._world.tell("message", card.message)

    def _look_at(self, node: Any, card_id: str) -> None:
        for item in tagged(node):
            if item["tag"] in {"markdown", "lark_md"}:
                self._judge.look_at_text(str(item.get("content", "")), f"card {card_id}")

    def _change(
        self, card_id: str, body: Json, kind: str, change: Callable[[Json], bool | None]
    ) -> Json:
        """Apply to a copy, judge it whole, keep it. `change` says whether streaming was switched (None: untouched)."""
        card = self._gate(card_id, body, kind)
        draft = copy.deepcopy(card.data)
        streaming = change(draft)
        self._rules.check_whole(draft)
        self._look_at(draft, card_id)
        card.data = draft
        if streaming is not None:
            card.set_streaming(streaming, self._config.clock())
        return self._done(card, body)

    def _settings(self, card: Json, settings: Any) -> bool | None:
        if (
            not isinstance(settings, dict)
            or not settings
            or settings.keys() - {"config", "card_link"}
        ):
            raise CardError(300122, "settings hold config and card_link")
        config = settings.get("config", {})
        try:
            self._rules.check_config(config)
        except CardError as error:
            raise error if error.code == 300302 else CardError(300122, error.detail) from None
        card.setdefault("config", {}).update(config)
        if "card_link" in settings:
            card["card_link"] = settings["card_link"]
        mode: bool | None = config.get("streaming_mode")
        return mode

    def _add(self, card: Json, params: Json) -> None:
        added = _parsed(params.get("elements"), 300315)
        if not isinstance(added, list) or not added:
            raise CardError(300315, "elements must be a list")
        for item in added:
            self._rules.check_component(item)
        elements.add(card, str(params.get("type")), params.get("target_element_id") or "", added)

    def _replace(self, card: Json, params: Json) -> None:
        element = _parsed(params.get("element"), 300121)
        self._rules.check_component(element)
        elements.replace(card, str(params.get("element_id")), element)

    def _patch(self, card: Json, params: Json) -> None:
        partial = _parsed(params.get("partial_element"), 300313)
        self._rules.check_component(elements.patch(card, str(params.get("element_id")), partial))

    def _delete(self, card: Json, params: Json) -> None:
        ids = params.get("element_ids")
        if not isinstance(ids, list) or not ids:
            raise CardError(300314, "element_ids must be a list")
        for element_id in ids:
            elements.delete(card, str(element_id))

    def _batch(self, card: Json, actions: Any) -> bool | None:
        if not isinstance(actions, list) or not actions:
            raise ApiError(10002, "actions must be a list")
        streaming: bool | None = None
        for action in actions:
            if not isinstance(action, dict) or not isinstance(action.get("params"), dict):
                raise ApiError(10002, "an action needs action and params")
            params = action["params"]
            match action.get("action"):
                case "partial_update_setting":
                    switched = self._settings(card, _parsed(params.get("settings"), 300122))
                    streaming = streaming if switched is None else switched
                case "add_elements":
                    self._add(card, params)
                case "delete_elements":
                    self._delete(card, params)
                case "partial_update_element":
                    self._patch(card, params)
                case "update_element":
                    self._replace(card, params)
                case other:
                    raise ApiError(10002, f"action {other!r}")
        return streaming


def _parsed(value: Any, code: int) -> Any:
    """A parameter that is a JSON string in the single calls and plain JSON inside batch_update."""
    return parse_json(value, code) if isinstance(value, str) else value
