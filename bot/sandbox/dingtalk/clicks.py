"""A click on a card's button: the callback by HTTP or Stream, the 2 s, the judged answer (dingtalk.md §5.8). Owns the routes."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from bot.sandbox.dingtalk import events
from bot.sandbox.dingtalk.cards import new_api_secret
from bot.sandbox.dingtalk.errors import ApiError
from bot.sandbox.dingtalk.sign import card_sign
from bot.sandbox.records import Attempt, Push

if TYPE_CHECKING:
    from bot.sandbox.dingtalk.card import Button, Card
    from bot.sandbox.dingtalk.cards import Cards
    from bot.sandbox.dingtalk.config import SandboxConfig
    from bot.sandbox.dingtalk.courier import Courier
    from bot.sandbox.dingtalk.gateway import Gateway
    from bot.sandbox.dingtalk.judge import Judge
    from bot.sandbox.dingtalk.world import Message, User
    from bot.sandbox.records import Records

Json = dict[str, Any]
_ANSWER = frozenset({"cardData", "userPrivateData", "cardUpdateOptions"})


@dataclass(frozen=True, slots=True)
class PressResult:
    """What became of a click. `error` "" = answered well; else no_callback, timeout, no connection, status, answer, …"""

    error: str
    status: int
    answer: Json
    ms: float


@dataclass(frozen=True, slots=True)
class Route:
    """A registered HTTP callback."""

    url: str
    secret: str


class Clicks:
    """Owner of the callback routes."""

    def __init__(self, config: SandboxConfig, cards: Cards, judge: Judge, records: Records) -> None:
        self._config = config
        self._cards = cards
        self._judge = judge
        self._records = records
        self.routes: dict[str, Route] = {}

    def register(self, body: Json) -> Json:
        """POST /v1.0/card/callbacks/register."""
        key, url = body.get("callbackRouteKey"), body.get("callbackUrl")
        if not isinstance(url, str) or not url:
            raise ApiError("invalidParameter", "callbackUrl")
        if not isinstance(key, str) or not key:
            raise ApiError("param.callbackRouteKey")
        known = self.routes.get(key)
        if known is not None and known.url != url and body.get("forceUpdate") is not True:
            raise ApiError("param.callbackRouteKey", "registered with another URL")
        secret = str(body.get("apiSecret") or (known.secret if known else new_api_secret()))
        self.routes[key] = Route(url, secret)
        return {"success": True, "result": {"callbackUrl": url, "apiSecret": secret}}

    async def press(
        self, message: Message, value: Any, user: User, gateway: Gateway, courier: Courier
    ) -> PressResult:
        """Click the button that is meant: by its action id, by its params, a part of them, or their `action`."""
        card = message.card
        if card is None or message.recalled:
            raise LookupError(f"message {message.id} has no card to click")
        button = meant(card.buttons, value)
        if not card.callback_type:
            return PressResult("no_callback", 0, {}, 0.0)
        data = events.card_click(self._config, card, message, user, button)
        way = "stream" if card.callback_type == "STREAM" else "webhook"
        event_id = secrets.token_hex(8)
        body = msgspec.json.encode(data)
        push = Push(
            event_id, events.CARD, data, body, False, way="stream" if way == "stream" else "webhook"
        )
        self._records.add_push(push)
        card.in_callback = True
        try:
            attempt = await self._send(card, data, body, gateway, courier)
        finally:
            card.in_callback = False
        self._records.add_attempt(push, attempt)
        return self._judged(card, attempt, event_id, way == "stream")

    async def _send(
        self, card: Card, data: Json, body: bytes, gateway: Gateway, courier: Courier
    ) -> Attempt:
        limit_s = self._config.click_ack_s
        if card.callback_type == "STREAM":
            return await gateway.send("CALLBACK", events.CARD, data, limit_s)
        route = self.routes.get(card.route_key)
        if route is None:
            return Attempt(self._config.clock(), 0, 0.0, "no route")
        timestamp = str(int(self._config.clock() * 1000))
        headers = {
            "Content-Type": "application/json; charset=utf-8",
            "x-ddpaas-signature-timestamp": timestamp,
            "x-ddpaas-signature": card_sign(timestamp, route.secret),
        }
        return await courier.post(route.url, body, headers, limit_s)

    def _judged(self, card: Card, attempt: Attempt, event_id: str, wrapped: bool) -> PressResult:
        def result(error: str, answer: Json | None = None) -> PressResult:
            if error in {"status", "answer", "timeout"}:
                self._judge.note("bad_callback_reply", f"click {event_id}: {error}")
            return PressResult(error, attempt.status, answer or {}, attempt.ms)

        if not attempt.status:
            return result(attempt.error)
        if attempt.status != 200:
            return result("status")
        answer = _object(attempt.body)
        if answer is not None and wrapped:
            answer = answer["response"] or {} if "response" in answer else None
        if not isinstance(answer, dict) or answer.keys() - _ANSWER:
            return result("answer")
        if not self._apply(card, answer):
            return result("answer")
        return result("", answer)

    def _apply(self, card: Card, answer: Json) -> bool:
        data = answer.get("cardData", {})
        params = data.get("cardParamMap", {}) if isinstance(data, dict) else None
        if not isinstance(params, dict) or any(not isinstance(v, str) for v in params.values()):
            return False
        if params or answer.get("userPrivateData"):
            self._cards.apply(card, params, answer)
            self._cards.told(card)
        return True


def _object(text: bytes) -> Json | None:
    if not text.strip():
        return {}
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return None
    return value if isinstance(value, dict) else None


def meant(buttons: list[Button], wanted: Any) -> Button:
    """The button that is meant. Raises LookupError when there is none."""
    if isinstance(wanted, dict) and "actionId" in wanted and "params" in wanted:
        wanted = {"actionId": wanted["actionId"], **wanted["params"]}
    for button in buttons:
        held = {**button.params, "actionId": button.action_id}
        if isinstance(wanted, dict):
            if wanted and all(held.get(key) == item for key, item in wanted.items()):
                return button
        elif wanted in {button.action_id, button.params.get("action"), button.text}:
            return button
    raise LookupError(f"no button with the value {wanted!r}")
