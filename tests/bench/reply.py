"""One reply as a person sees it: `python -m tests.bench.reply`. Real demo model, strict sandbox, 60 ms round trips.

- first text: from the webhook's POST to the first visible text, minus the engine's own queue and prefill time;
- final card: from the end of generation to the card that no longer streams;
- update calls per reply; RSS of the bot after start and after 200 chats (these with the scripted model).
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from bot.sandbox.feishu import Limits, SandboxConfig
from tests.prove.load import tree_rss_mb
from tests.prove.suite import median
from tests.support.stand import Stand

REPLIES = 10
LATENCY_S = 0.06
CHATS = 200


def _stand(folder: str, models: dict[str, Any], **config: Any) -> Stand:
    return Stand(
        Path(folder),
        models=models,
        extra={"chat": {"max_new_tokens": 96}},
        sandbox_config=SandboxConfig(limits=Limits().without_rates(), **config),
    )


async def replies() -> dict[str, Any]:
    """The times of single replies."""
    first_ms, final_ms, updates, engine_ms = [], [], [], []
    with tempfile.TemporaryDirectory() as folder:
        models = {"backend": "llama.cpp", "path": "demo"}
        async with _stand(folder, models, latency_s=LATENCY_S) as stand:
            user = stand.sandbox.add_user("Lin")
            group = stand.sandbox.add_group("g", [user])
            await stand.settled(await stand.sandbox.say(group, user, "Warm up, please."))
            for i in range(REPLIES):
                calls = len(stand.sandbox.calls)
                posted = time.time()
                asked = await stand.sandbox.say(
                    group, user, f"Question {i}: tell me about rivers, please."
                )
                seen = await stand.sandbox.wait_for(
                    lambda q=asked: _first_text_at(stand, q), timeout=60
                )
                await stand.settled(asked, timeout_s=60)
                done = stand.events("generated")[-1]
                card = stand.sandbox.replies(asked)[0].card
                assert card is not None
                closed = next(op.at for op in reversed(card.ops) if op.kind == "settings")
                engine = (done["queue_s"] + done["prefill_s"]) * 1000
                engine_ms.append(engine)
                first_ms.append((seen - posted) * 1000 - engine)
                final_ms.append((closed - datetime.fromisoformat(done["at"]).timestamp()) * 1000)
                updates.append(
                    sum(
                        1
                        for c in stand.sandbox.calls[calls:]
                        if c.api in {"card.content", "card.update"}
                    )
                )
    return {
        "first_text_over_engine_ms_median": round(median(first_ms)),
        "engine_queue_and_prefill_ms_median": round(median(engine_ms)),
        "last_token_to_final_card_ms_median": round(median(final_ms)),
        "card_updates_per_reply_median": median(updates),
        "round_trip_ms": LATENCY_S * 1000,
    }


def _first_text_at(stand: Stand, asked: Any) -> float:
    if any(text.strip() for text in stand.answers(asked)):
        return time.time()
    return 0.0


async def memory() -> dict[str, Any]:
    """RSS of the bot's own process."""
    with tempfile.TemporaryDirectory() as folder:
        async with _stand(
            folder, {"backend": "fake", "fake": {"reply": "A short answer. " * 20}}
        ) as stand:
            assert stand.process is not None
            before = tree_rss_mb(stand.process.pid)
            people = [stand.sandbox.add_user(f"user{i}") for i in range(CHATS)]
            chats = [stand.sandbox.direct_chat(user) for user in people]
            for start in range(0, CHATS, 20):
                asked = await asyncio.gather(
                    *(
                        stand.sandbox.say(c, u, "Hello?")
                        for c, u in zip(
                            chats[start : start + 20], people[start : start + 20], strict=True
                        )
                    )
                )
                for question in asked:
                    await stand.settled(question, timeout_s=60)
            after = tree_rss_mb(stand.process.pid)
    return {
        "bot_rss_mb_start": round(before[0]),
        f"bot_rss_mb_after_{CHATS}_chats": round(after[0]),
    }


def main() -> None:
    """Print the figures as JSON."""
    figures = {**asyncio.run(replies()), **asyncio.run(memory())}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
