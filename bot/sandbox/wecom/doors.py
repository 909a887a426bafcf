"""The way to the bot in the sandbox's mode: callback, WebSocket or app. `Doors` picks; owns nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bot.sandbox.records import Push

if TYPE_CHECKING:
    from bot.sandbox.wecom.app_door import AppDoor
    from bot.sandbox.wecom.appxml import Fields
    from bot.sandbox.wecom.callback import CallbackDoor
    from bot.sandbox.wecom.config import WeComConfig
    from bot.sandbox.wecom.exchanges import Exchange
    from bot.sandbox.wecom.gateway import Gateway
    from bot.sandbox.wecom.world import Chat, Message, User

Json = dict[str, Any]


class Doors:
    """One bot's ways in."""

    def __init__(
        self, config: WeComConfig, callback: CallbackDoor, gateway: Gateway, app: AppDoor
    ) -> None:
        self._config = config
        self._callback = callback
        self._gateway = gateway
        self._app = app
        self.base_url = ""

    def response_url(self, code: str) -> str:
        """ "" without a code."""
        return f"{self.base_url}/cgi-bin/aibot/response?response_code={code}" if code else ""

    async def message(self, exchange: Exchange, body: Json) -> Push:
        """A person's message to an AI bot."""
        if self._config.mode == "websocket":
            return await self._gateway.push(body)
        return await self._callback.message(exchange, body)

    async def event(self, exchange: Exchange, body: Json) -> Push:
        """An event of an AI bot."""
        if self._config.mode == "websocket":
            return await self._gateway.push(body)
        return await self._callback.event(exchange, body)

    async def app_callback(
        self, chat: Chat, user: User, fields: Fields, message: Message | None
    ) -> Push:
        """A message or an event of an app."""
        return await self._app.deliver(chat, user, fields, message)

    async def redeliver(self, push: Push) -> Push:
        """The same callback once more, after it was taken."""
        if self._config.mode == "websocket":
            await self._gateway.deliver(push)
            return push
        if self._config.mode == "app":
            return await self._app.again(push)
        return await self._callback.again(push)
