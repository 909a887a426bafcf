"""Counting and rendering in the engine child, on a thread of its own, so that neither waits for a decode step.

Owns the questions that wait for an answer. Must not touch the core: it uses only the backend's thread-safe text
questions. Native decoding runs without the interpreter lock, so this thread answers while a long prompt is computed.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable
from typing import Protocol

from engine.errors import EngineError
from engine.link import wire
from engine.types import ChatMessage, Rendered

# A rendered conversation must fit a frame; a million ids are ≤ 5 MB of msgpack and more than any window.
MAX_RENDERED_TOKENS = 1_000_000
# What one question may hold: four characters for each of those ids.
MAX_CHARS = 4 * MAX_RENDERED_TOKENS
SHORT_CHARS = 64 * 1024


class Renderer(Protocol):
    """What the desk needs of `engine.text.template.ChatTemplate`."""

    def render(self, messages: tuple[ChatMessage, ...], *, add_generation_prompt: bool) -> Rendered:
        """A conversation through the chat template."""
        ...


class TextDesk:
    """Answers `AskCount` and `AskRender`, short texts first. Owner: its thread; any thread may `put`.

    A tokenizer reads about a million characters in a second, so a short question never waits for more than one long text.
    """

    def __init__(
        self,
        count: Callable[[str], int],
        renderer: Renderer,
        answer: Callable[[wire.Report], None],
    ) -> None:
        self._count = count
        self._renderer = renderer
        self._answer = answer
        self._questions: queue.PriorityQueue[tuple[bool, int, wire.AskCount | wire.AskRender]] = (
            queue.PriorityQueue()
        )
        self._numbers = itertools.count()
        self._thread = threading.Thread(target=self._run, name="text", daemon=True)

    def start(self) -> None:
        """Start answering."""
        self._thread.start()

    def put(self, question: wire.AskCount | wire.AskRender) -> None:
        """Queue a question; returns at once."""
        long = _n_chars(question) > SHORT_CHARS
        self._questions.put((long, next(self._numbers), question))

    def _run(self) -> None:
        while True:
            self.answer_next()

    def answer_next(self) -> None:
        """Wait for a question and answer it; what the thread does over and over."""
        _, _, question = self._questions.get()
        try:
            answer = self._answer_to(question)
        except EngineError as error:
            answer = wire.Refusal(seq=question.seq, message=str(error))
        except Exception as error:  # noqa: BLE001 - one bad text must not end the service; its words are not repeated
            answer = wire.Refusal(
                seq=question.seq,
                message=f"the tokenizer or chat template failed ({type(error).__name__})",
            )
        self._answer(answer)

    def _answer_to(self, question: wire.AskCount | wire.AskRender) -> wire.Report:
        n_chars = _n_chars(question)
        if n_chars > MAX_CHARS:
            return wire.Refusal(
                seq=question.seq,
                message=f"a text of {n_chars} characters is too long; {MAX_CHARS} can be counted",
            )
        if isinstance(question, wire.AskCount):
            return wire.CountAnswer(seq=question.seq, n_tokens=self._count(question.text))
        rendered = self._renderer.render(
            question.messages, add_generation_prompt=question.add_generation_prompt
        )
        if len(rendered.token_ids) > MAX_RENDERED_TOKENS:
            return wire.Refusal(
                seq=question.seq,
                message=f"the conversation has {len(rendered.token_ids)} tokens; {MAX_RENDERED_TOKENS} can be sent",
            )
        return wire.RenderAnswer(seq=question.seq, rendered=rendered)


def _n_chars(question: wire.AskCount | wire.AskRender) -> int:
    if isinstance(question, wire.AskCount):
        return len(question.text)
    return sum(len(message.content) for message in question.messages)
