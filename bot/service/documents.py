"""Files that people send: fetched and read as soon as their message is stored, kept with the conversation, never twice.

An address may live for minutes only, while the question waits its turn: so reading begins at once and the turn joins it.
What was read is in the store, so that neither a retry nor a crash fetches again; what could not be fetched is not, so that
/retry may.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

import structlog

from bot.config import DocumentsConfig, parse_bytes
from bot.documents import Extracted, extract
from bot.domain.catalogue import Language, say
from bot.domain.documents import (
    Document,
    DocumentState,
    cut_pieces,
    is_document,
    shown_name,
    source_of,
)
from bot.domain.ports import Store
from bot.domain.types import Attachment, InboundMessage, ReplyTarget, Turn
from bot.errors import Ambiguous, HearthError, PlatformError, RetryLater, TooLarge
from bot.platforms.base import PlatformAdapter
from bot.service.clock import Clock
from bot.service.settings import Settings

log = structlog.get_logger()

# Files in work at once: each may hold its bytes here and a child process of some hundred MiB.
MAX_AT_ONCE = 2
# More files in one message than this are not looked at.
MAX_PER_TURN = 8
FETCH_TRIES = 3
_MAX_PAUSE_S = 10.0


@dataclass(frozen=True, slots=True)
class _Wanted:
    """One file to be read for one turn. `targets`: the messages that may have brought it, the likeliest first."""

    turn: Turn
    adapter: PlatformAdapter
    attachment: Attachment
    targets: tuple[ReplyTarget, ...]


class DocumentReader:
    """Reads files, each once. Owner: the service. State: the tasks that are reading."""

    def __init__(self, store: Store, settings: Settings, clock: Clock) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self._at_once = asyncio.Semaphore(MAX_AT_ONCE)
        self._reading: dict[tuple[str, str], asyncio.Task[Document]] = {}
        self._begun: set[asyncio.Task[None]] = set()

    @property
    def _rules(self) -> DocumentsConfig:
        return self._settings.config.documents

    def are_in(self, message: InboundMessage) -> bool:
        """Whether a message brings a file that may be read, or refers to one."""
        return self._rules.enabled and any(is_document(a) for a in _files_of(message))

    def begin(self, turn_id: str, message: InboundMessage, adapter: PlatformAdapter) -> None:
        """Start reading what a message brought; returns at once."""
        if self.are_in(message):
            task = asyncio.create_task(self._begin(turn_id, message, adapter), name="documents")
            self._begun.add(task)
            task.add_done_callback(self._begun.discard)

    async def read(self, turn: Turn, adapter: PlatformAdapter) -> tuple[Document, ...]:
        """The files of a turn, read by now or not readable. Raises StoreError."""
        targets = [turn.target]
        targets += [
            replace(turn.target, reply_to=message_id)
            for message_id in reversed(turn.message_ids)
            if message_id != turn.target.reply_to
        ]
        return tuple(
            [
                await self._join(_Wanted(turn, adapter, attachment, tuple(targets)))
                for attachment in self._of(turn.attachments)
            ]
        )

    async def close(self) -> None:
        """Stop reading; the turns begin anew after the next start."""
        tasks = [*self._begun, *self._reading.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- inside ------------------------------------------------------------------------------------------------------
    def _of(self, attachments: Sequence[Attachment]) -> list[Attachment]:
        wanted = [a for a in attachments if is_document(a)] if self._rules.enabled else []
        return wanted[:MAX_PER_TURN]

    async def _begin(self, turn_id: str, message: InboundMessage, adapter: PlatformAdapter) -> None:
        try:
            turn = await self._store.turn(turn_id)
            if turn is None:
                return
            for attachment in self._of(_files_of(message)):
                await self._join(_Wanted(turn, adapter, attachment, (message.target,)))
        except HearthError as error:  # the turn itself tries again
            log.warning("document_put_off", error=type(error).__name__)

    async def _join(self, wanted: _Wanted) -> Document:
        """Read a file, or wait for whoever is reading it. Who stops waiting does not stop the reading."""
        source = source_of(wanted.attachment)
        key = (wanted.turn.session_id, source)
        # Nothing is awaited between the look and the entry, and the task itself asks the store: a reading that ends
        # while another asks is never begun again.
        task = self._reading.get(key)
        if task is None:
            task = self._reading[key] = asyncio.create_task(
                self._read(wanted, source), name="document"
            )
            task.add_done_callback(lambda done: self._ended(key, done))
        return await asyncio.shield(task)

    def _ended(self, key: tuple[str, str], task: asyncio.Task[Document]) -> None:
        self._reading.pop(key, None)
        if not task.cancelled():
            task.exception()  # told to whoever waits; when all have left, it is nobody's

    async def _read(self, wanted: _Wanted, source: str) -> Document:
        turn, name = wanted.turn, shown_name(wanted.attachment.name)
        known = await self._store.document(turn.session_id, source)
        if known is not None:
            return known
        begun_s = self._clock.monotonic()
        async with self._at_once:
            found = await self._extracted(wanted)
        pieces = await asyncio.to_thread(cut_pieces, found.pages, numbered=found.n_pages > 0)
        document = Document(
            source,
            name,
            found.state,
            turn.turn_no,
            n_pages=found.n_pages,
            n_chars=sum(map(len, found.pages)),
            n_pieces=len(pieces),
            is_cut=found.is_cut,
        )
        log.info(
            "document_read",
            state=found.state.value,
            n_chars=document.n_chars,
            n_pages=found.n_pages,
            took_s=round(self._clock.monotonic() - begun_s, 3),
        )
        if found.state is DocumentState.NOT_FETCHED:
            return document
        return await self._store.save_document(turn, document, pieces)

    async def _extracted(self, wanted: _Wanted) -> Extracted:
        try:
            data = await self._fetch(wanted)
        except TooLarge:
            return Extracted(DocumentState.TOO_BIG)
        except PlatformError as error:
            log.warning("document_not_fetched", error=str(error), code=error.code)
            return Extracted(DocumentState.NOT_FETCHED)
        try:
            return await extract(data)
        except OSError:
            log.exception("document_child_not_started")
            return Extracted(DocumentState.UNREADABLE)

    async def _fetch(self, wanted: _Wanted) -> bytes:
        """Raises PlatformError."""
        max_bytes = parse_bytes(self._rules.max_bytes)
        targets = wanted.targets
        if wanted.attachment.message_id:
            targets = (replace(targets[0], reply_to=wanted.attachment.message_id),)
        for n, target in enumerate(targets):
            try:
                return await self._insist(wanted, target, max_bytes)
            except TooLarge:
                raise
            except PlatformError:
                if n + 1 == len(targets):
                    raise
        raise AssertionError("unreachable: the last target returns or raises")

    async def _insist(self, wanted: _Wanted, target: ReplyTarget, max_bytes: int) -> bytes:
        for tries in range(1, FETCH_TRIES + 1):
            try:
                return await wanted.adapter.fetch(wanted.attachment, target, max_bytes=max_bytes)
            except (RetryLater, Ambiguous) as error:
                if tries == FETCH_TRIES:
                    raise
                after_s = error.after_s if isinstance(error, RetryLater) else 1.0
                await self._clock.sleep(min(_MAX_PAUSE_S, after_s * tries))
        raise AssertionError("unreachable: the last try returns or raises")


def _files_of(message: InboundMessage) -> tuple[Attachment, ...]:
    return (*message.attachments, *(message.quoted.attachments if message.quoted else ()))


# -- words about files ---------------------------------------------------------------------------------------------------
def file_name(language: Language, document: Document, *, pages: bool = False) -> str:
    """How a sentence calls a file."""
    name = (
        say(language, "document.name", name=document.name)
        if document.name
        else say(language, "document.unnamed")
    )
    if pages and document.n_pages:
        name += say(language, "document.pages", n=document.n_pages)
    return name


def why_not_read(language: Language, document: Document, max_bytes: str) -> str:
    """The sentence for a file that was not read; "" for one that was."""
    if document.state is DocumentState.READ:
        return ""
    key = f"document.{document.state.value}"
    return _sentence(say(language, key, file=file_name(language, document), limit=max_bytes))


def acknowledgement(language: Language, documents: Sequence[Document], max_bytes: str) -> str:
    """The answer to files that came without a question."""
    lines = []
    for document in documents:
        name, n_chars = file_name(language, document, pages=True), document.n_chars
        if document.state is DocumentState.READ:
            lines.append(_sentence(say(language, "document.ready", file=name, n_chars=n_chars)))
            if document.is_cut:
                lines.append(_sentence(say(language, "document.is_cut", file=name, n_chars=n_chars)))  # fmt: skip
        else:
            lines.append(why_not_read(language, document, max_bytes))
    return "\n\n".join(lines)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
