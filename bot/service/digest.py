"""`/summary`: a long text or the talk itself, read through in the background, beside the talk, which goes on meanwhile.

Its turn has a lane of its own. While it works, its message shows how far it is; each part's result is stored, so that a
restart goes on behind the last; what comes of it is a turn of the talk like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import structlog

from bot.domain.catalogue import Language, say
from bot.domain.commands import arguments_of
from bot.domain.digest import DigestPart, Part, end_of, talk_pieces
from bot.domain.documents import Document, DocumentState, Piece, ranges
from bot.domain.prompt import CannotFit, speaker_name, usable
from bot.domain.sessions import is_shared
from bot.domain.summary import language_of
from bot.domain.turns import answering
from bot.domain.types import ChatKind, Outcome
from bot.service.board import ActiveTurn
from bot.service.context import Context
from bot.service.conversation import warm_with
from bot.service.digesting import MOST_PARTS, Digester, Note, Wanted
from bot.service.documents import file_name, why_not_read
from bot.service.ledger import ReplyLedger
from bot.service.longtext import keep_paste
from bot.service.quoting import looked_up
from bot.service.streamer import Streamer
from engine.errors import EngineBusy, EngineConfigError, EngineUnavailable
from engine.face import Engine

log = structlog.get_logger()

MAX_TRIES = 6
MAX_BACKOFF_S = 20.0
STATUS_AFTER_S = 1.0
# What stands behind the command is a text from so many characters on, else a wish.
TEXT_CHARS = 400
# So many of the last questions tell in which language people here write.
_LAST_QUESTIONS = 5
_TALK = frozenset({"chat", "talk", "对话", "聊天", "聊天记录"})


@dataclass(frozen=True, slots=True)
class Source:
    """The text to be summarized. `documents` is empty for the talk, of which `n_turns` are in it."""

    pieces: tuple[Piece, ...]
    documents: tuple[Document, ...] = ()
    wish: str = ""
    n_turns: int = 0

    @property
    def document_id(self) -> int:
        """As `DigestPart` names it."""
        return self.documents[0].id if self.documents else 0


class Digest:
    """Makes one turn's summary. Owned by the turn's task, like a `Generation`."""

    def __init__(
        self,
        context: Context,
        active: ActiveTurn,
        bot_name: str,
        ledger: ReplyLedger,
        streamer: Streamer,
    ) -> None:
        self._context = context
        self._turn = active.turn
        self._bot_name = bot_name
        self._ledger = ledger
        self._streamer = streamer
        self._language = context.settings.language
        model = context.model_of(bot_name)
        writer = context.settings.config.summarizer.model
        self._model = writer if writer in context.engines else model
        self._engine: Engine = context.engines[self._model]
        self._question = ""
        self._n_done = 0
        self._n_tries = 0

    async def run(self) -> None:
        """Read the text and end the ledger. Raises StoreError, and what is a fault of ours."""
        turn = self._turn
        adapter = self._context.adapters[self._bot_name]
        quotes = await looked_up(self._context, turn, adapter) if turn.quotes else ()
        files = (*turn.attachments, *(a for quote in quotes for a in quote.attachments))
        own: tuple[Document, ...] = ()
        if files:
            self._streamer.status(self._say("waiting.document"), STATUS_AFTER_S)
            own = await self._context.documents.read(replace(turn, attachments=files), adapter)
        source = await self._source(own)
        if not source.pieces:
            max_bytes = self._context.settings.config.documents.max_bytes
            told = [why_not_read(self._language, document, max_bytes) for document in own]
            self._ledger.end(Outcome.FAILED, " ".join(told) or self._say("digest.nothing"))
            return
        self._question = self._asked(source)
        await self._context.store.fix_prompt(turn.id, self._question)
        self._streamer.status(self._say("digest.waiting"), STATUS_AFTER_S)
        async with self._context.digesting[self._model]:
            await self._insist(source)

    async def stop(self) -> bool:
        """There is nothing to wait for: whoever owns this cancels it, and the stored parts go with the turn."""
        return False

    async def remember(self) -> None:
        """The next prompt has this turn in it: it is computed ahead."""
        snapshot = self._ledger.snapshot
        if snapshot.outcome is Outcome.COMPLETE:
            await warm_with(
                self._context, self._turn, self._bot_name, self._question, snapshot.text
            )

    # -- which text --------------------------------------------------------------------------------------------------
    async def _source(self, own: Sequence[Document]) -> Source:
        """What came with the command; else what it holds; else the newest file or long paste here; else the talk."""
        words = arguments_of(self._turn.question)
        if readable := [d for d in own if d.state is DocumentState.READ]:
            return await self._of_documents(readable, words)
        if own:
            return Source(())
        if len(words) >= TEXT_CHARS:
            return await self._of_documents(
                [await keep_paste(self._context, self._turn, words)], ""
            )
        if words.casefold() not in _TALK:
            await self._files_on_their_way()
            known = await self._context.store.documents(self._turn.session_id)
            usable_ones = [
                d for d in known if d.state is DocumentState.READ and d.turn_no < self._turn.turn_no
            ]
            if usable_ones:
                newest = max(usable_ones, key=lambda d: (d.turn_no, d.id))
                return await self._of_documents([newest], words)
            return await self._of_talk(words)
        return await self._of_talk("")

    async def _files_on_their_way(self) -> None:
        """A file sent just before the command may still be read."""
        store, adapter = self._context.store, self._context.adapters[self._bot_name]
        for other in answering(await store.unfinished_turns(self._turn.session_id)):
            if other.turn_no < self._turn.turn_no and other.attachments:
                await self._context.documents.read(other, adapter)

    async def _of_documents(self, documents: Sequence[Document], wish: str) -> Source:
        """Several files one behind the other."""
        pieces: list[Piece] = []
        for document in documents:
            offset = end_of(pieces[-1]) + 1 if pieces else 0
            for piece in await self._context.store.document_pieces(document.id):
                pieces.append(replace(piece, n=len(pieces), start_chars=piece.start_chars + offset))
        return Source(tuple(pieces), tuple(documents), wish)

    async def _of_talk(self, wish: str) -> Source:
        past = usable(await self._context.store.past_turns(self._turn.session_id))
        past = [one for one in past if one.turn_no < self._turn.turn_no]
        name = self._context.adapters[self._bot_name].display_name
        return Source(talk_pieces(past, name), (), wish, len(past))

    # -- reading it --------------------------------------------------------------------------------------------------
    async def _insist(self, source: Source) -> None:
        """Try until it is done; what is stored of it is not done again."""
        tries = 0
        while not self._ledger.final:
            n_before = self._n_done
            self._n_tries += 1
            try:
                await self._read(source)
            except CannotFit:
                self._ledger.end(Outcome.FAILED, self._say("end.too_long"))
            except EngineConfigError as error:
                log.warning("digest_failed", error=str(error))
                self._ledger.end(Outcome.FAILED, self._say("end.no_model"))
            except (EngineUnavailable, EngineBusy) as error:
                tries = 1 if self._n_done > n_before else tries + 1
                log.warning("digest_put_off", tries=tries, error=str(error))
                if tries >= MAX_TRIES:
                    self._ledger.end(Outcome.FAILED, self._say("end.no_model"))
                    return
                await self._context.clock.sleep(min(MAX_BACKOFF_S, 0.25 * 2**tries))

    async def _read(self, source: Source) -> None:
        store, turn = self._context.store, self._turn
        language = await self._chat_language(source)
        wanted = Wanted(
            what=self._what(source, language),
            wish=source.wish,
            language=language,
            max_new_tokens=self._context.settings.chat.max_new_tokens,
            id=f"{turn.id}.{turn.attempt}.{self._n_tries}",
            owner=f"digest:{turn.asker.user_id}",
        )
        digester = Digester(self._engine, wanted)
        known = [
            part
            for part in await store.digest_parts(turn.id)
            if part.document_id == source.document_id
        ]
        self._n_done = len(known)
        done_to = known[-1].end if known else -1
        left = [piece for piece in source.pieces if piece.start_chars >= done_to]
        parts = await digester.parts(left, MOST_PARTS - len(known)) if left else []
        n_all = len(known) + len(parts)
        if n_all == 1 and parts:
            self._tell("digest.whole", source)
            text, how = await digester.whole(parts[0])
            self._end(source, text, [how], how, parts[0].end)
            return
        for n, part in enumerate(parts, len(known) + 1):
            self._tell("digest.part", source, n=n, total=n_all)
            known.append(await self._one(digester, part, n, source.document_id))
        self._tell("digest.joining", source, total=n_all)
        notes = [self._note(source, part, language) for part in known]
        text, how = await digester.together(notes)
        self._end(source, text, [part.how for part in known], how, known[-1].end)

    async def _one(self, digester: Digester, part: Part, n: int, document_id: int) -> DigestPart:
        text, how = await digester.part(part)
        done = DigestPart(n, document_id, part.start, part.end, text, how)
        await self._context.store.save_digest_part(self._turn.id, done)
        self._n_done = n
        log.info("digest_part", n=n, how=how, n_chars=len(text))
        return done

    async def _chat_language(self, source: Source) -> Language:
        """People read the summary: it is in the language they write in."""
        past = await self._context.store.past_turns(self._turn.session_id, limit=_LAST_QUESTIONS)
        asked = [one.prompt_text for one in past]
        if not source.documents:
            asked += [piece.text for piece in source.pieces[-_LAST_QUESTIONS:]]
        return language_of([*asked, source.wish], self._language)

    # -- words -------------------------------------------------------------------------------------------------------
    def _end(self, source: Source, text: str, hows: Sequence[str], how: str, read_to: int) -> None:
        notes = [self._covered(source, len(hows), read_to)]
        if how == "extract":
            notes.append(self._say("digest.extract"))
        elif extracts := [n for n, one in enumerate(hows, 1) if one == "extract"]:
            notes.append(self._say("digest.extract_parts", parts=ranges(extracts)))
        self._ledger.end(Outcome.COMPLETE, " ".join(notes), text=text)
        log.info("digested", n_parts=len(hows), how=how, n_chars=len(text))

    def _covered(self, source: Source, n_parts: int, read_to: int) -> str:
        """Which parts of the text the summary is about."""
        whole = end_of(source.pieces[-1]) <= read_to
        what = self._what(source, self._language)
        if not source.documents:
            key = "digest.covers_talk" if whole else "digest.covers_some_talk"
            return self._say(key, n=source.n_turns, parts=n_parts)
        read = [piece for piece in source.pieces if piece.start_chars < read_to]
        pages = ranges(piece.page for piece in read if piece.page)
        n_chars = sum(document.n_chars for document in source.documents)
        if not whole:
            percent = max(1, min(99, 100 * sum(len(p.text) for p in read) // max(1, n_chars)))
            some = say(self._language, "digest.pages", pages=pages) if pages else ""
            return self._say(
                "digest.covers_some", what=what, percent=percent, pages=some, parts=n_parts
            )
        cut = any(document.is_cut for document in source.documents)
        key = "digest.covers_cut" if cut else "digest.covers_all"
        return self._say(key, what=what, n_chars=n_chars, parts=n_parts)

    def _asked(self, source: Source) -> str:
        """What later prompts show as the question."""
        asked = self._say("digest.asked", what=self._what(source, self._language))
        if is_shared(self._turn.session) and self._turn.chat_kind is ChatKind.GROUP:
            asked = f"[{speaker_name(self._language, self._turn.asker)}] {asked}"
        return f"{asked}\n{self._say('digest.wish', wish=source.wish)}" if source.wish else asked

    def _note(self, source: Source, part: DigestPart, language: Language) -> Note:
        pages = ranges(
            piece.page
            for piece in source.pieces
            if piece.page and part.start <= piece.start_chars < part.end
        )
        if pages and len(source.documents) == 1:
            label = say(language, "digest.label_pages", pages=pages)
        else:
            label = say(language, "digest.label", n=part.n)
        return Note(label, part.text)

    def _what(self, source: Source, language: Language) -> str:
        if not source.documents:
            return say(language, "digest.talk")
        names = [file_name(language, document, pages=True) for document in source.documents]
        return ", ".join(names)

    def _tell(self, key: str, source: Source, **values: object) -> None:
        self._streamer.status(self._say(key, what=self._what(source, self._language), **values))

    def _say(self, key: str, **values: object) -> str:
        return say(self._language, key, **values)
