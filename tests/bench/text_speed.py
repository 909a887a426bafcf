"""What text costs in the decode loop and on the tokenizer's thread.

    .venv/bin/python -m tests.bench.text_speed

Microseconds per generated id for decoding, thinking and stop strings; milliseconds to render a conversation with the
demo model's template and tokenizer. Prints one JSON line.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from engine.backends.base import make_backend
from engine.config import EngineConfig
from engine.text.output import ReplyText
from engine.text.template import ChatTemplate
from engine.types import ChatMessage, Role

PIECES = (b" hello", b" world", b"\xe4\xbd", b"\xa0", "好".encode(), b".\n", b" `x < y`", b"\n\n")
STOPS = ("<|im_end|>", "\nUser:", "\n\n\n")


def microseconds_per_id(stops: tuple[str, ...], *, thinking_open: bool) -> float:
    """Median of five replies of 4,000 ids."""

    def reply() -> None:
        text = ReplyText(lambda i: PIECES[i % len(PIECES)], stops, thinking_open)
        for token_id in range(4000):
            text.push(token_id)
        text.finish()

    return round(_median_s(reply) / 4000 * 1e6, 2)


def render_milliseconds() -> dict[str, float]:
    """By length of the conversation, in messages."""
    backend = make_backend(EngineConfig(name="bench", path="demo", n_ctx=256, n_parallel=1))
    try:
        template = ChatTemplate(
            backend.chat_template(),
            bos_text=backend.bos_text,
            eos_text=backend.eos_text,
            add_bos=backend.add_bos,
            tokenize=lambda text, special: backend.tokenize(
                text, add_special=False, parse_special=special
            ),
            special_texts=backend.special_texts(),
        )
        figures = {}
        for n_messages in (2, 20, 60):
            messages = [
                ChatMessage(
                    role=(Role.USER, Role.ASSISTANT)[i % 2], content="A line of chat. " * 10
                )
                for i in range(n_messages)
            ]
            n_tokens = template.render(messages, add_generation_prompt=True).n_tokens
            took_s = _median_s(partial(template.render, messages, add_generation_prompt=True))
            figures[f"{n_messages} messages, {n_tokens} tokens"] = round(took_s * 1000, 2)
        return figures
    finally:
        backend.close()


async def measure() -> dict[str, Any]:
    """All figures."""
    return {
        "push_us": microseconds_per_id((), thinking_open=False),
        "push_with_stops_us": microseconds_per_id(STOPS, thinking_open=False),
        "push_thinking_us": microseconds_per_id((), thinking_open=True),
        "render_ms": render_milliseconds(),
    }


def _median_s(work: Callable[[], object]) -> float:
    times = []
    for _ in range(5):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def main() -> None:
    """Measure and print."""
    import asyncio

    print(json.dumps(asyncio.run(measure())))


if __name__ == "__main__":
    main()
