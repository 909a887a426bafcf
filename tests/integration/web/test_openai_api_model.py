"""`/v1/chat/completions` with the real demo model: a conversation whose second turn is warm."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]
SYSTEM = {"role": "system", "content": "You are a helpful assistant. Answer in short sentences."}


async def test_the_second_turn_is_cached_but_for_its_own_words(make_api):
    rig = await make_api(ready_s=200, backend="llama.cpp", path="demo", n_ctx=1024, n_parallel=2)
    options = {"temperature": 0, "max_tokens": 24, "stream_options": {"include_usage": True}}
    history = [SYSTEM, {"role": "user", "content": "Name three colours of the rainbow."}]
    first = await rig.stream(history, **options)
    assert first.text().strip()
    question = {"role": "user", "content": "Which of them do you like best?"}
    history += [{"role": "assistant", "content": first.text()}, question]
    before = (await rig.engine.stats()).decoded_prompt_tokens_total
    second = await rig.stream(history, **options)
    computed = (await rig.engine.stats()).decoded_prompt_tokens_total - before
    usage = second.usage
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert usage["prompt_tokens"] - cached == computed
    # "<|im_end|>\n<|im_start|>user\n", the question, "<|im_end|>\n<|im_start|>assistant\n", and the last sampled id.
    assert computed <= await rig.engine.count(question["content"]) + 14
    assert cached > first.usage["prompt_tokens"]
    again = await rig.stream(history, **options)
    assert again.text() == second.text(), "the same question with the same KV gives the same words"
