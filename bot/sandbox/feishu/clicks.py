"""A click on a card: the callback, the 3 s, the judged answer, the deferred update (feishu.md §1.6). Owns the update tokens."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bot.sandbox.feishu import events
from bot.sandbox.feishu.courier import Courier, decode_reply
from bot.sandbox.feishu.errors import ApiError, CardError
from bot.sandbox.records import Attempt, Push, Records

if TYPE_CHECKING:
    from bot.sandbox.feishu.cardkit import CardKit
    from bot.sandbox.feishu.cardschema import Json
    from bot.sandbox.feishu.config import SandboxConfig
    from bot.sandbox.feishu.judge import Judge
    from bot.sandbox.feishu.world import Message, User

_TOKEN_LIFE_S = 1800.0
_TOKEN_USES = 2
_TOASTS = frozenset({"info", "success", "warning", "error"})


@dataclass(frozen=True, slots=True)
class PressResult:
    """What the person who clicked sees. `code` 0, or the client's error code (200340 … 200830)."""

    code: int
    status: int
    toast: dict[str, str] | None
    card: dict[str, Any] | None
    ms: float
    event_id: str


@dataclass(slots=True)
class _Token:
    message: Message
    expires_at: float
    answered: bool = False
    uses: int = _TOKEN_USES


class Clicks:
    """Owner of the deferred-update tokens and of the click lock while a callback is under way."""

    def __init__(
        self,
        config: SandboxConfig,
        cardkit: CardKit,
        judge: Judge,
        courier: Courier,
        records: Records,
    ) -> None:
        self._config = config
        self._cardkit = cardkit
        self._judge = judge
        self._courier = courier
        self._records = records
        self._tokens: dict[str, _Token] = {}

    async def press(self, message: Message, value: Any, user: User) -> PressResult:
        """Click the button with this callback value. While the answer is awaited, updates get 200810."""
        card = message.card
        if card is None or message.recalled:
            raise LookupError(f"message {message.id} has no card to click")
        found = button_value(card.buttons, value)
        token = f"c-{secrets.token_hex(20)}"
        self._tokens[token] = _Token(message, self._config.clock() + _TOKEN_LIFE_S)
        payload = events.envelope(
            self._config,
            events.CARD_ACTION,
            events.card_action(self._config, message, user, found, token),
        )
        url = self._courier.callback_url or self._courier.event_url
        if not url:
            return PressResult(200340, 0, None, None, 0.0, events.event_id_of(payload))
        body = self._courier.seal(payload)
        push = Push(
            events.event_id_of(payload),
            events.CARD_ACTION,
            payload,
            body,
            bool(self._config.encrypt_key),
        )
        card.click_lock = True
        self._records.add_push(push)
        try:
            attempt = await self._courier.post(url, body, self._courier.signed_headers(body))
        finally:
            card.click_lock = False
        self._records.add_attempt(push, attempt)
        self._tokens[token].answered = attempt.ok
        return self._judged(message, attempt, push.event_id)

    def deferred_update(self, body: Json) -> Json:
        """POST /interactive/v1/card/update: 30 minutes, 2 uses, only after the callback was answered."""
        token = self._tokens.get(str(body.get("token", "")))
        data = body.get("card")
        if (
            token is None
            or self._config.clock() >= token.expires_at
            or token.uses <= 0
            or not token.answered
        ):
            raise ApiError(10002, "token")
        if not isinstance(data, dict) or token.message.card is None:
            raise ApiError(10002, "card")
        self._cardkit.replace_by_callback(token.message.card, data)
        token.uses -= 1
        return {}

    def _judged(self, message: Message, attempt: Attempt, event_id: str) -> PressResult:
        def result(code: int, toast: Any = None, card: Any = None) -> PressResult:
            if code:
                self._judge.note("bad_callback_reply", f"event {event_id}: {code}")
            return PressResult(code, attempt.status, toast, card, attempt.ms, event_id)

        if not attempt.status:
            return result({"timeout": 200341}.get(attempt.error, 200342))
        if attempt.status != 200:
            return result(200671)
        reply = decode_reply(attempt.body)
        if not isinstance(reply, dict) or reply.keys() - {"toast", "card"}:
            return result(200672)
        toast = reply.get("toast")
        if toast is not None and not _legal_toast(toast):
            return result(200672)
        code = self._apply(message, reply["card"], event_id) if "card" in reply else 0
        return result(code, toast, reply.get("card") if not code else None)

    def _apply(self, message: Message, given: Any, event_id: str) -> int:
        data = given.get("data") if isinstance(given, dict) else None
        if not isinstance(given, dict) or given.get("type") != "raw" or not isinstance(data, dict):
            return 200673
        card = message.card
        if card is None:
            return 200673
        if card.data.get("schema") == "2.0" and data.get("schema") != "2.0":
            return 200830
        if card.streaming:
            self._judge.note("card_in_callback_while_streaming", f"event {event_id}")
            return 0
        try:
            self._cardkit.replace_by_callback(card, data)
        except CardError:
            return 200673
        return 0


def _legal_toast(toast: Any) -> bool:
    return (
        isinstance(toast, dict)
        and not toast.keys() - {"type", "content", "i18n"}
        and toast.get("type", "info") in _TOASTS
        and isinstance(toast.get("content", ""), str)
    )


def button_value(buttons: list[Json], wanted: Any) -> Any:
    """The callback value of the button that is meant: by the whole value, by a part of it, or by its `action`.

    Raises LookupError when no enabled button has it.
    """
    for button in buttons:
        if button.get("disabled"):
            continue
        for behavior in button.get("behaviors", []):
            value = behavior.get("value")
            if behavior.get("type") == "callback" and _meant(value, wanted):
                return value
    raise LookupError(f"no enabled button with the value {wanted!r}")


def _meant(value: Any, wanted: Any) -> bool:
    if value == wanted:
        return True
    if isinstance(value, dict) and isinstance(wanted, dict):
        return bool(wanted) and all(value.get(key) == item for key, item in wanted.items())
    return isinstance(value, dict) and isinstance(wanted, str) and value.get("action") == wanted
