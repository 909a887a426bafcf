"""With the real model: a text that is longer than the window is read in parts that fit, while somebody asks beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bot.domain.types import Outcome
from tests.prove.talkroom import group_talk
from tests.support.room import Room

pytestmark = [pytest.mark.model, pytest.mark.timeout(240)]

TEXT = "\n".join(f"{who} said: {text}" for who, text in group_talk()[:32])


async def test_a_text_longer_than_the_window(tmp_path: Path) -> None:
    async with Room(tmp_path, 640, {"chat": {"max_new_tokens": 24}}, n_parallel=2) as room:
        said = await room.say("/summary " + TEXT)
        beside = await room.ask("Is the sea salty?", "Bea")
        reply = await room.ended(said)
        after = await room.ask("Thank you.")
        parts, digests = room.events("digest_part"), room.events("digested")
        asked = room.events("generated")
        past = await room.store.past_turns((await room.turn(said)).session_id)
    assert beside.outcome in {Outcome.COMPLETE, Outcome.LENGTH}
    # The question right behind the text is shown what of it bears on the question, if it has been read by then.
    assert asked[-1]["n_prompt"] < 250, "the text is no part of later prompts"
    assert len(parts) >= 2
    assert len(digests) == 1
    assert reply.outcome is Outcome.COMPLETE
    assert reply.text
    assert f"parts: {len(parts)})" in reply.notice
    assert [one.prompt_text for one in past[:2]] == [
        "[Bea] Is the sea salty?",
        "[Ann] Please summarize “pasted text”.",
    ], "it ended after the question that was asked beside it"
    assert after.text
