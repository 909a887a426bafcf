"""Drafts and events for the store's tests, with sensible defaults and keys that never repeat by accident."""

from __future__ import annotations

import itertools
from dataclasses import replace

from bot.domain.records import Acceptance, TurnDraft
from bot.domain.types import ChatKind, Lane, ReplyTarget, Sender, SessionKey, TurnKind, WhileBusy

_numbers = itertools.count(1)


def session_key(
    user: str = "u1", *, chat_id: str = "c1", shared: bool = False, app: str = "app"
) -> SessionKey:
    return SessionKey(app, chat_id, None, None if shared else user)


def _draft(
    kind: TurnKind, lane: Lane, text: str, user: str, shared: bool, message_id: str
) -> TurnDraft:
    message_id = message_id or f"om_{next(_numbers)}"
    return TurnDraft(
        session=session_key(user, shared=shared),
        kind=kind,
        lane=lane,
        asker=Sender(user),
        question=text,
        target=ReplyTarget("app", "c1", message_id),
        message_id=message_id,
        chat_kind=ChatKind.GROUP,
    )


def chat(
    text: str = "question",
    *,
    user: str = "u1",
    name: str = "",
    message_id: str = "",
    while_busy: WhileBusy = WhileBusy.QUEUE,
    shared: bool = False,
) -> TurnDraft:
    draft = _draft(TurnKind.CHAT, Lane.CHAT, text, user, shared, message_id)
    return replace(draft, while_busy=while_busy, asker=Sender(user, name))


def command(text: str, *, user: str = "u1", shared: bool = False) -> TurnDraft:
    return _draft(TurnKind.COMMAND, Lane.CONTROL, text, user, shared, "")


def notice(answer: str, *, user: str = "u1", lane: Lane = Lane.CONTROL) -> TurnDraft:
    return replace(_draft(TurnKind.NOTICE, lane, "", user, False, ""), answer=answer)


def event(draft: TurnDraft | None, *, key: str = "", app: str = "app") -> Acceptance:
    number = next(_numbers)
    return Acceptance(app, key or f"key_{number}", f"ev_{number}", draft)
