"""One AI card: created, growing, closed (dingtalk.md §5).

The card's name (`outTrackId`) is planned before anything is sent, so making it twice is harmless. Every update carries the
whole text; a client that was away never sees the updates again, so the final text is also written into the card's data.
"""

from __future__ import annotations

import uuid
from dataclasses import replace

import structlog

from bot.domain.types import ReplyPart
from bot.errors import FallBack, PlatformError, RetryLater
from bot.platforms.base import Button
from bot.platforms.dingtalk.api import NewCard, dumps
from bot.platforms.dingtalk.errors import CardExists, CardRefused, TooBig
from bot.platforms.dingtalk.surfaces import PLACEHOLDER, Face, ReplyContext, Surface

log = structlog.get_logger()

# Values of the variable flowStatus, in templates that have it (§5.3).
_PROCESSING, _INPUTTING, _FINISHED = "1", "2", "3"
_COLORS = {"stop": "red", "regenerate": "blue"}


def buttons_json(buttons: tuple[Button, ...], turn_id: str) -> str:
    """The value of a template's variable for a list of buttons."""
    return dumps(
        [
            {
                "text": button.label,
                "color": _COLORS.get(button.action, "gray"),
                "status": "normal",
                # Lists of buttons are read in two ways: by the console's button group and by prebuilt templates.
                "id": button.action,
                "params": {"action": button.action, "turn_id": turn_id},
                "event": {
                    "type": "sendCardRequest",
                    "params": {
                        "actionId": button.action,
                        "params": {"action": button.action, "turn_id": turn_id},
                    },
                },
            }
            for button in buttons
        ]
    )


class AiCard(Surface):
    """A card made from the configured template. What it shows is known only to the process that showed it."""

    kind = "card"
    grows = True

    def __init__(self, context: ReplyContext, part: ReplyPart) -> None:
        super().__init__(context, part)
        config = context.desk.config
        self._key = config.card_content_key
        self._buttons_key = config.card_buttons_key if context.desk.callback else ""
        self._has_flow = config.card_flow_status
        self._shown = ""
        self._finalized = False
        self._refused_writes = 0

    @property
    def content(self) -> str:
        """See Surface."""
        return self._shown

    # -- growing -----------------------------------------------------------------------------------------------------
    async def show(self, face: Face) -> None:
        """Make the card or let it grow."""
        await self._open(face)
        if face.content != self._shown:
            await self._stream(face)

    async def _open(self, face: Face) -> None:
        if self.visible:
            return
        before = await self._begin(face)
        try:
            sent: str | PlatformError = await self._create(face)
        except CardExists:
            # Only we use this name: an earlier call arrived, and only its answer was lost.
            sent = before.message_id or "card"
        except PlatformError as error:
            sent = error
        await self._settle(before, sent, face)

    async def _create(self, face: Face) -> str:
        """Nothing of the answer is in the new card: if it is never heard of again, nothing was read twice."""
        context = self.context
        params = {self._key: PLACEHOLDER}
        if self._has_flow:
            params["flowStatus"] = _PROCESSING
        if self._buttons_key:
            params[self._buttons_key] = buttons_json(face.buttons, self.part.turn_id)
        card = NewCard(
            context.desk.config.card_template,
            self.part.idem_key,
            params,
            context.desk.callback,
            face.title,
            at_user=context.desk.config.mention_asker and self.part.n == 0,
        )
        carrier = await context.desk.api.create_card(context.address, card) or "card"
        if self._has_flow:  # such templates stream only in this state
            await self._set_flow(_INPUTTING)
        return carrier

    async def _set_flow(self, status: str) -> None:
        try:
            await self.context.desk.api.put_card(self.part.idem_key, {"flowStatus": status})
        except PlatformError as error:  # the streaming call that follows shows whether it mattered
            log.debug("dingtalk_flow_not_set", turn_id=self.part.turn_id, reason=str(error))

    async def _stream(self, face: Face, *, last_guid: str = "") -> None:
        await self.save(covers_to_chars=max(face.upto_chars, self.part.covers_to_chars))
        content = face.content or PLACEHOLDER
        api = self.context.desk.api
        await api.stream_card(self.part.idem_key, self._key, content, last_guid=last_guid)
        self._shown = face.content

    def _last_guid(self, face: Face) -> str:
        """The same for the same last text, also in another process: an update that arrived unnoticed is not made twice.
        One that was refused is made under another."""
        write = f"{self.part.idem_key}\n{self._refused_writes}\n{face.content}"
        return str(uuid.uuid5(uuid.NAMESPACE_OID, write))

    # -- closing -----------------------------------------------------------------------------------------------------
    async def close(self, face: Face) -> None:
        """The last update, then the same text and the controls as the card's data (§5.7).

        An earlier last update may have arrived without our knowing; then DingTalk refuses another, and the data decide.
        """
        await self._open(face)
        await self._end(face)

    async def _end(self, face: Face) -> None:
        refusal = await self._finalize(face)
        params = {self._key: face.content or PLACEHOLDER}
        if self._key == "msgContent":  # such templates go blank at the end without this copy
            params["staticMsgContent"] = params[self._key]
        if self._has_flow:
            params["flowStatus"] = _FINISHED
        if self._buttons_key:
            params[self._buttons_key] = buttons_json(face.buttons, self.part.turn_id)
        try:
            await self.context.desk.api.put_card(self.part.idem_key, params)
        except FallBack as error:
            if refusal is not None:
                raise refusal from error
            log.info("dingtalk_card_data_refused", turn_id=self.part.turn_id, reason=str(error))
        self._shown = face.content

    async def _finalize(self, face: Face) -> FallBack | None:
        if self._finalized:
            return None
        try:
            await self._stream(face, last_guid=self._last_guid(face))
        except (TooBig, CardRefused):
            raise
        except RetryLater:
            self._refused_writes += 1
            raise
        except FallBack as error:
            return error
        self._finalized = True
        return None

    async def hush(self, face: Face) -> None:
        """End the card with what it shows."""
        if not self.visible and not self.uncertain:
            return
        # Where it is not known whether the card is there, ending one that is not does no harm.
        await self._end(replace(face, content=self._shown or face.content, buttons=()))
