"""AI cards: create, deliver, stream, update (dingtalk.md §5). Owns every card of the app.

A refused call changes nothing. Sizes are what the config's mode says: the documents' 1 KB, or what projects meet.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from bot.sandbox.dingtalk import world as w
from bot.sandbox.dingtalk.card import Card, CardOp
from bot.sandbox.dingtalk.errors import ApiError

if TYPE_CHECKING:
    from bot.sandbox.dingtalk.config import SandboxConfig, Template
    from bot.sandbox.dingtalk.judge import Judge
    from bot.sandbox.dingtalk.world import Chat, World

Json = dict[str, Any]
_PREFIX = "dtv1.card//"


class Cards:
    """Owner of the cards."""

    def __init__(self, config: SandboxConfig, world: World, judge: Judge) -> None:
        self._config = config
        self._world = world
        self._judge = judge

    # -- calls -------------------------------------------------------------------------------------------------------
    def create(self, body: Json) -> Json:
        """POST /v1.0/card/instances."""
        card = self._create(body)
        return {"success": True, "result": card.track_id}

    def deliver(self, body: Json) -> Json:
        """POST /v1.0/card/instances/deliver: a card that was created before."""
        card = self._world.cards.get(_word(body, "outTrackId", "param.outTrackId"))
        if card is None:
            raise ApiError("cardNotExist")
        results = self._deliver(card, body)
        return {"success": True, "result": results}

    def create_and_deliver(self, body: Json) -> Json:
        """POST /v1.0/card/instances/createAndDeliver."""
        track_id = _word(body, "outTrackId", "param.outTrackId")
        known = self._world.cards.get(track_id)
        if known is not None and self._config.reused_track == "silent":
            return {"success": True, "result": {"outTrackId": track_id, "deliverResults": []}}
        self._check_models(body)
        card = self._create(body)
        results = self._deliver(card, body)
        return {"success": True, "result": {"outTrackId": track_id, "deliverResults": results}}

    def stream(self, body: Json) -> Json:
        """PUT /v1.0/card/streaming: one frame."""
        card = self._world.cards.get(str(body.get("outTrackId", "")))
        if card is None:
            raise ApiError("param.stream.outTrackId")
        content = body.get("content")
        text = content if isinstance(content, str) else ""
        try:
            fresh = self._check_frame(card, body, text)
        except ApiError as error:
            card.ops.append(CardOp(self._config.clock(), "stream", error.code, text))
            raise
        if fresh:
            self._apply_frame(card, body, text)
        return {"success": True, "result": True}

    def update(self, body: Json) -> Json:
        """PUT /v1.0/card/instances: the public variables, all of them unless updateCardDataByKey."""
        card = self._world.cards.get(str(body.get("outTrackId", "")))
        if card is None:
            raise ApiError("param.outTrackId")
        if card.in_callback:
            self._judge.note("update_during_callback", f"card {card.track_id}")
        params = self._params(body, required=False)
        self.apply(card, params, body)
        key = card.template.key
        card.ops.append(CardOp(self._config.clock(), "update", "", params.get(key, "")))
        self._changed(card)
        return {"success": True, "result": True}

    # -- used by the others ------------------------------------------------------------------------------------------
    def apply(self, card: Card, params: dict[str, str], body: Json) -> None:
        """New public (and private) variables; the default replaces them as a whole."""
        options = body.get("cardUpdateOptions")
        by_key = isinstance(options, dict) and options.get("updateCardDataByKey") is True
        if params:
            card.params = {**card.params, **params} if by_key else dict(params)
            if card.template.key in params:
                card.streamed[card.template.key] = params[card.template.key]
            elif not by_key:
                card.streamed.pop(card.template.key, None)
        for user_id, held in _objects(body.get("privateData") or body.get("userPrivateData")):
            card.private.setdefault(user_id, {}).update(
                {str(k): str(v) for k, v in (held.get("cardParamMap") or {}).items()}
            )

    def begin_frame(self, track_id: str) -> Card | None:
        """A streaming call arrives. Raises ApiError while another one on the same card is under way (§5.5)."""
        card = self._world.cards.get(track_id)
        if card is not None and card.busy:
            self._judge.note("concurrent_frames", f"card {track_id}")
            raise ApiError("Forbidden.AccessDenied.CardConcurrency")
        if card is not None:
            card.busy += 1
        return card

    def told(self, card: Card) -> None:
        """People see a change (also used after a button's answer)."""
        self._changed(card)

    # -- creating ----------------------------------------------------------------------------------------------------
    def _create(self, body: Json) -> Card:
        track_id = _word(body, "outTrackId", "param.outTrackId")
        known = self._world.cards.get(track_id)
        if known is not None:
            if self._config.reused_track == "silent":
                return known
            raise ApiError("cardAlreadyExist")
        template = self._template(body.get("cardTemplateId"))
        params = self._params(body, required=True)
        kind = body.get("callbackType", "")
        if kind not in {"", "STREAM", "HTTP"}:
            raise ApiError("param.callbackType")
        if kind == "HTTP" and not body.get("callbackRouteKey"):
            raise ApiError("param.callbackRouteKey")
        self._check_words(" ".join(params.values()))
        blank = self._config.limits.blank_chars if self._config.sizes == "field" else None
        card = Card(track_id, template, params, self._config.clock(), blank)
        card.callback_type, card.route_key = str(kind), str(body.get("callbackRouteKey", ""))
        self._world.cards[track_id] = card
        card.ops.append(CardOp(self._config.clock(), "create", "", params.get(template.key, "")))
        return card

    def _template(self, template_id: Any) -> Template:
        if not isinstance(template_id, str) or not template_id.endswith(".schema"):
            raise ApiError("param.templateNotExist")
        for template in self._config.templates:
            if template.id == template_id:
                if not template.published:
                    raise ApiError("param.templateUnpublished")
                return template
        raise ApiError("param.templateNotExist")

    def _params(self, body: Json, *, required: bool) -> dict[str, str]:
        data = body.get("cardData")
        params = data.get("cardParamMap") if isinstance(data, dict) else None
        if params is None and not required:
            return {}
        if not isinstance(params, dict):
            raise ApiError("param.cardParamMap", "cardData.cardParamMap is required")
        limits = self._config.limits
        for key, value in params.items():
            if not isinstance(value, str):
                raise ApiError("param.cardParamMap", f"{key} is no string")
            if len(key.encode()) > limits.key_bytes:
                raise ApiError("param.cardParamMap", f"the key {key[:20]} is too long")
            size = (
                limits.value_bytes
                if self._config.sizes == "documented"
                else limits.field_frame_bytes
            )
            if len(value.encode()) > size:
                raise ApiError("param.cardParamMap", f"the value of {key} is too long")
        return dict(params)

    def _check_words(self, text: str) -> None:
        if any(word in text for word in self._config.unsafe_words):
            raise ApiError("contentUnsafe")

    # -- delivering --------------------------------------------------------------------------------------------------
    def _check_models(self, body: Json) -> None:
        spaces = _spaces(body.get("openSpaceId"))
        for name in ("imGroupOpenSpaceModel", "imRobotOpenSpaceModel"):
            model = body.get(name)
            if model is not None and not (isinstance(model, dict) and "supportForward" in model):
                raise ApiError("param.supportForward")
        if any(kind == "IM_GROUP" for kind, _ in spaces):
            model = body.get("imGroupOpenDeliverModel")
            if not isinstance(model, dict) or not model.get("robotCode"):
                raise ApiError("param.robotCode", "imGroupOpenDeliverModel.robotCode")

    def _deliver(self, card: Card, body: Json) -> list[Json]:
        self._check_models(body)
        return [
            self._place(card, kind, space, body) for kind, space in _spaces(body["openSpaceId"])
        ]

    def _place(self, card: Card, kind: str, space: str, body: Json) -> Json:
        found: Json = {"spaceType": kind, "spaceId": space, "success": False}
        if kind == "IM_GROUP":
            chat = self._world.chats.get(space)
            model = body.get("imGroupOpenDeliverModel")
            if chat is None or chat.kind != "group":
                self._judge.note("illegal_space", f"IM_GROUP.{space}")
                return found | {"errorMsg": "spaceId is illegal"}
            if not chat.has_bot or chat.dissolved:
                return found | {"errorMsg": "robot is not in the group"}
        else:
            user = self._world.find_staff(space)
            model = body.get("imRobotOpenDeliverModel")
            if kind != "IM_ROBOT" or user is None:
                self._judge.note("illegal_space", f"{kind}.{space}")
                return found | {"errorMsg": "spaceId is illegal"}
            if not isinstance(model, dict) or model.get("spaceType") != "IM_ROBOT":
                return found | {"errorMsg": "imRobotOpenDeliverModel.spaceType is illegal"}
            if self._config.one_to_one_needs_robot_code and not model.get("robotCode"):
                return found | {"errorMsg": "robotCode is empty"}
            chat = self._world.direct_chat(user)
        model = model if isinstance(model, dict) else {}
        if model.get("robotCode", self._config.robot) != self._config.robot:
            return found | {"errorMsg": "robotCode is illegal"}
        message = self._message(card, chat, model)
        return found | {"success": True, "carrierId": message.query_key}

    def _message(self, card: Card, chat: Chat, model: Json) -> w.Message:
        named = model.get("atUserIds")
        ids = [str(key) for key in named] if isinstance(named, dict) else []
        where = f"card {card.track_id}"
        self._judge.mentioned([any_id for any_id in ids if any_id != "@ALL"], chat, where)
        if "@ALL" in ids:
            self._judge.note("mention_injected", f"{where}: @ALL")
        people = tuple(user for user in map(self._world.find_staff, ids) if user is not None)
        question = self._world.newest_question(chat, people[0] if people else None)
        message = w.Message(
            w.new_message_id(), chat, self._world.bot, self._world.now_ms(), "card", {},
            answers=question.id if question else "", by="card", mentions=people, at_all="@ALL" in ids,
            pinged=people, query_key=w.new_query_key(), card=card,
        )  # fmt: skip
        if card.state == "created":
            card.state = "processing"
        card.messages.append(message)
        self._world.add_message(message)
        self._judge.look_at_card(card)
        return message

    # -- streaming ---------------------------------------------------------------------------------------------------
    def _check_frame(self, card: Card, body: Json, text: str) -> bool:
        """Whether the frame is to be applied (a known guid is not). Raises ApiError."""
        guid, key = body.get("guid"), body.get("key")
        if not isinstance(guid, str) or not guid:
            raise ApiError("param.stream.guidEmpty")
        if not isinstance(key, str) or not key:
            raise ApiError("param.stream.keyEmpty")
        no_text = not text and self._config.empty_frame == "error"
        if not isinstance(body.get("content"), str) or no_text:
            raise ApiError("param.stream.contentEmpty")
        if guid in card.guids:
            if card.guids[guid] != text:
                self._judge.note("guid_reused", f"card {card.track_id}")
            return False
        self._check_size(card, body, text)
        self._check_template(card, body, key)
        if card.state in {"finished", "failed"}:
            if not card.answer_lost:
                self._judge.note("frame_after_end", f"card {card.track_id}")
            raise ApiError("param.stream.finalized")
        if not card.messages:
            raise ApiError("param.stream.outTrackId", "not delivered")
        self._check_words(text)
        return True

    def _check_template(self, card: Card, body: Json, key: str) -> None:
        if key != card.template.key:
            raise ApiError("unknownError", f"the template streams no {key}")
        if card.template.kind == "markdown" and body.get("isFull") is not True:
            raise ApiError("param.stream.isFull", "a markdown variable takes whole texts")
        if body.get("isError") is True and not card.template.failed_state:
            raise ApiError("unknownError", "the template has no state for failures")

    def _check_size(self, card: Card, body: Json, text: str) -> None:
        limits, documented = self._config.limits, self._config.sizes == "documented"
        if len(text.encode()) > (limits.frame_bytes if documented else limits.field_frame_bytes):
            raise ApiError("param.stream.content", "200092")
        whole = text if body.get("isFull") is True else card.source + text
        if documented and len(whole.encode()) > limits.total_bytes:
            self._judge.note("card_over_3k", f"card {card.track_id}")

    def _apply_frame(self, card: Card, body: Json, text: str) -> None:
        card.guids[body["guid"]] = text
        key = card.template.key
        card.streamed[key] = text if body.get("isFull") is True else card.source + text
        last, failed = body.get("isFinalize") is True, body.get("isError") is True
        if last and failed:
            self._judge.note("finalize_and_error", f"card {card.track_id}")
        card.state = "failed" if failed else "finished" if last else "inputing"
        kind = "error" if failed else "finalize" if last else "stream"
        card.ops.append(CardOp(self._config.clock(), kind, "", text))
        self._changed(card)

    def _changed(self, card: Card) -> None:
        self._judge.look_at_card(card)
        for message in card.messages:
            self._world.tell("message", message)


def new_api_secret() -> str:
    """What the platform makes up when a route is registered without one."""
    return secrets.token_urlsafe(24)


def _spaces(value: Any) -> list[tuple[str, str]]:
    """`dtv1.card//TYPE.id;TYPE.id`: the prefix once. Types in any case, as the documents' samples have them."""
    if not isinstance(value, str) or not value.lower().startswith(_PREFIX):
        raise ApiError("param.openSpaceId")
    found = []
    for part in value[len(_PREFIX) :].split(";"):
        kind, dot, space = part.partition(".")
        if not dot or not space:
            raise ApiError("param.openSpaceId")
        found.append((kind.upper(), space))
    return found


def _word(body: Json, name: str, code: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise ApiError(code, f"{name} is required")
    return value


def _objects(value: Any) -> list[tuple[str, Json]]:
    if not isinstance(value, dict):
        return []
    return [(str(key), item) for key, item in value.items() if isinstance(item, dict)]
