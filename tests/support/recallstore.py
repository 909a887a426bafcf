"""A real store with a long history in it that no model ever had to answer, and questions asked over it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from prometheus_client import CollectorRegistry

from bot.config import parse_config
from bot.domain.records import Acceptance, Canonical, TurnDraft
from bot.domain.types import (
    ChatKind,
    Lane,
    Outcome,
    ReplyTarget,
    Sender,
    SessionKey,
    Snapshot,
    Turn,
    TurnKind,
    TurnState,
)
from bot.service.app import Service
from bot.service.conversation import Conversation, Prepared
from bot.store import Store
from bot.store.tables import replies, sessions, turns
from engine.face import Engine
from engine.types import EngineRequest, ModelInfo, Sampling, Usage
from tests.support.recallkit import Message

KEY = SessionKey("app", "chat", None, None)
BEGIN = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)


def config(folder: Path, **tables: Mapping[str, Any]) -> Any:
    """A configuration without bots."""
    data: dict[str, Any] = {
        "models": {"main": {"backend": "llama.cpp", "path": "demo", "n_ctx": 4096, "n_parallel": 1}},
        "chat": {"language": "en", "show_date": False, "session": "shared", "max_new_tokens": 512},
        "summarizer": {"enabled": False},
    }  # fmt: skip
    return parse_config({**data, **{name: dict(table) for name, table in tables.items()}}, folder)


async def fill(store: Store, said: Sequence[tuple[Message, str]]) -> str:
    """Put turns into the store as if they had been answered. Returns the session's id."""
    session = await store.session(KEY)
    turn_rows, reply_rows = [], []
    for n, (message, answer) in enumerate(said, session.last_turn_no + 1):
        turn_id, at = uuid.uuid4().hex, BEGIN + timedelta(minutes=7 * n)
        turn_rows.append(
            {
                "id": turn_id, "session_id": session.id, "turn_no": n, "kind": TurnKind.CHAT.value, "lane": Lane.CHAT.value,
                "state": TurnState.DONE.value, "attempt": 1, "asker_id": message.speaker, "asker_name": message.speaker,
                "asker_is_bot": 0, "chat_kind": ChatKind.GROUP.value, "question": message.text,
                "prompt_text": f"[{message.speaker}] {message.text}", "target": '["app", "chat", "", "", null]', "attachments": "[]",
                "cancel_requested": 0, "silent": 0, "replaced": 0, "error": "", "created_at": at, "finished_at": at,
            }
        )  # fmt: skip
        reply_rows.append(
            {
                "turn_id": turn_id, "rev": 1, "text": answer, "token_ids": (), "outcome": Outcome.COMPLETE.value,
                "notice": "", "updated_at": at,
            }
        )  # fmt: skip

    def work(connection: sa.Connection) -> None:
        connection.execute(sa.insert(turns), turn_rows)
        connection.execute(sa.insert(replies), reply_rows)
        last = session.last_turn_no + len(turn_rows)
        this = sa.update(sessions).where(sessions.c.id == session.id)
        connection.execute(this.values(last_turn_no=last))

    await store._db.write(work)
    return session.id


async def index(store: Store, session_id: str) -> None:
    """As the background does it."""
    while not await store.index_history(session_id, limit=100):
        pass


async def begin_window(store: Store, session_id: str, turn_no: int) -> None:
    """As after a cut: older turns are no longer in the prompt."""
    await store.save_canonical(session_id, Canonical("", (), (), turn_no, 0))


class Asker:
    """Asks questions in a filled conversation through the service's own code, without platforms."""

    def __init__(self, store: Store, engine: Engine, settings: Any, speaker: str = "Ann") -> None:
        self._store = store
        self._engine = engine
        self._speaker = speaker
        service = Service(settings, store, {}, {"main": engine}, registry=CollectorRegistry())
        self._context = service._context
        self._max_new = settings.chat.max_new_tokens

    async def prepare(self, question: str, info: ModelInfo) -> tuple[Conversation, Turn, Prepared]:
        """The prompt of a new question."""
        target = ReplyTarget("app", "chat", "")
        draft = TurnDraft(
            KEY, TurnKind.CHAT, Lane.CHAT, Sender(self._speaker, self._speaker), question, target, "", ChatKind.GROUP,
        )  # fmt: skip
        key = uuid.uuid4().hex
        accepted = await self._store.accept(Acceptance("app", key, key, draft))
        claimed = await self._store.claim("me", 600, 10)
        turn = next(turn for turn in claimed if turn.id == accepted.turn_id)
        conversation = Conversation(self._context, turn, "Ember", self._engine)
        return conversation, turn, await conversation.prepare(info)

    async def take_back(self, turn: Turn) -> None:
        """The question was only a test: nothing of it stays in the conversation."""
        await self._store.finish_turn(turn.id, "me", TurnState.CANCELLED)

    async def answer(
        self, question: str, info: ModelInfo, max_new_tokens: int = 24
    ) -> tuple[Usage, float]:
        """A whole turn. Returns what it cost and the seconds from the question to the first token."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        conversation, turn, prepared = await self.prepare(question, info)
        plan = prepared.built.plan
        request = EngineRequest(
            id=turn.id, prompt_tokens=plan.tokens, max_new_tokens=max_new_tokens,
            sampling=Sampling(temperature=0), cache_key=prepared.cache_key, scope="app", owner="me",
            n_shared_prefix=plan.n_shared_prefix,
        )  # fmt: skip
        first_s, ids, text, usage, answer = 0.0, [], "", Usage(), (0, 0)
        async for event in self._engine.submit(request):
            if hasattr(event, "token_ids"):
                first_s = first_s or loop.time() - started
                ids += event.token_ids
                text += event.text
            elif hasattr(event, "usage"):
                usage, answer = event.usage, (event.answer_start, event.n_answer)
        kept = tuple(ids[answer[0] : sum(answer)])
        await self._store.save_reply(
            turn.id, Snapshot(1, text or "…", tuple(ids), Outcome.COMPLETE), None
        )
        await conversation.remember(prepared, kept, has_thinking=False)
        await self._store.finish_turn(turn.id, "me", TurnState.DONE)
        await index(self._store, turn.session_id)
        return usage, first_s


def shown_with(prepared: Prepared, question: str) -> str:
    """What the newest message shows beside the question."""
    return prepared.built.messages[-1].content.rpartition(question)[0]


def as_named(message: Message, speaker: str) -> Message:
    """The same words from somebody else."""
    return replace(message, speaker=speaker)
