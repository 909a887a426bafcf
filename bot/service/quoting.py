"""What a question refers to, looked up when the question is answered: in what we keep ourselves, else on the platform.

Feishu only names the message, and no platform tells what one of our own cards says. A question never fails for want of it.
"""

from __future__ import annotations

from dataclasses import replace

import structlog

from bot.domain import quotes
from bot.domain.quotes import MAX_QUOTES, is_told
from bot.domain.types import Quoted, Turn
from bot.platforms.base import PlatformAdapter
from bot.service.context import Context

log = structlog.get_logger()


async def looked_up(context: Context, turn: Turn, adapter: PlatformAdapter) -> tuple[Quoted, ...]:
    """The messages that a turn refers to, with their words where these can be had. Raises StoreError."""
    found = []
    for quote in turn.quotes[-MAX_QUOTES:]:
        if quote.is_topic_root and await context.store.knows_message(turn, quote.message_id):
            continue
        found.append(quote if is_told(quote) else await _look_up(context, turn, adapter, quote))
    n_told = sum(map(is_told, found))
    log.info("quotes_looked_up", n=len(found), n_unknown=len(found) - n_told)
    return tuple(found)


async def _look_up(context: Context, turn: Turn, adapter: PlatformAdapter, quote: Quoted) -> Quoted:
    said = await context.store.said_in(turn.session.app_id, turn.session.chat_id, quote.message_id)
    if said:
        own = quotes.quoted(quote.message_id, said, is_topic_root=quote.is_topic_root)
        return own or quote
    there = await adapter.look_up(quote, turn.target)
    if there is None:
        return quote
    return replace(there, is_topic_root=quote.is_topic_root)
