"""Answers that go on: what `/continue` and the button under a cut answer ask for."""

from __future__ import annotations

from dataclasses import dataclass

from bot.domain.catalogue import say
from bot.domain.turns import answering
from bot.domain.types import Outcome, SessionKey
from bot.service.context import Context

# Ends at which an answer may be in the middle of a sentence.
_CUT = {Outcome.LENGTH, Outcome.STOPPED}


@dataclass(frozen=True, slots=True)
class Continuation:
    """A question that asks for more. `continues` names the cut answer's turn; "" = there is none: it asks in words alone.

    Whether the answer then goes on from its ids is decided when the turn runs (`Conversation`).
    """

    question: str
    continues: str


async def continuation(context: Context, key: SessionKey) -> Continuation | None:
    """What `/continue` means in a conversation now; None where nothing was said yet. Raises StoreError."""
    store = context.store
    session = await store.session(key)
    unfinished = answering(await store.unfinished_turns(session.id))
    last = await store.last_chat_turn(session.id)
    if last is None and not unfinished:
        return None
    continues = ""
    if last is not None and not unfinished:
        snapshot, _ = await store.reply(last.id)
        if snapshot is not None and snapshot.outcome in _CUT and snapshot.text:
            continues = last.id
    return Continuation(say(context.settings.language, "continue.ask"), continues)
