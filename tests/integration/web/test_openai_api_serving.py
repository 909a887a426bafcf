"""`/v1/chat/completions` over HTTP with the scripted engine: answers, errors, leaving, dying, reuse."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import socket

import aiohttp
import pytest
import structlog
from aiohttp import web

SYSTEM = {"role": "system", "content": "You are a helpful assistant of a small company. Be brief."}
WORDS = "One two three 四五六 seven 🚀 nine ten."
SLOW = {"reply": "word " * 400, "token_delay_s": "0.01"}


def user(text):
    return {"role": "user", "content": text}


def bot(text):
    return {"role": "assistant", "content": text}


async def until(check, timeout_s=10.0):
    async with asyncio.timeout(timeout_s):
        while not await check():
            await asyncio.sleep(0.01)


async def test_an_answer_in_one_piece(make_api):
    rig = await make_api(fake={"reply": WORDS})
    body = await rig.ask([SYSTEM, user("hi")], model="default")
    assert body["object"] == "chat.completion"
    assert body["model"] == "main"
    (choice,) = body["choices"]
    assert choice["message"]["content"] == WORDS
    assert choice["finish_reason"] == "stop"
    usage = body["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    rendered = await rig.engine.render([_m("system", SYSTEM["content"]), _m("user", "hi")])
    assert usage["prompt_tokens"] == rendered.n_tokens


def _m(role, content):
    from engine.types import ChatMessage, Role

    return ChatMessage(role=Role(role), content=content)


async def test_an_answer_in_a_stream(make_api):
    rig = await make_api(fake={"reply": WORDS})
    answer = await rig.stream([user("hi")], model="main", stream_options={"include_usage": True})
    assert answer.done
    assert answer.text() == WORDS
    assert answer.chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert answer.finish == ["stop"]
    assert answer.chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert answer.chunks[-1]["choices"] == []
    assert answer.usage["completion_tokens"] >= len(WORDS.encode())
    assert len({chunk["id"] for chunk in answer.chunks}) == 1
    without = await rig.stream([user("hi")])
    assert without.done
    assert not any("usage" in chunk for chunk in without.chunks)


async def test_thinking_goes_beside_the_answer(make_api):
    rig = await make_api(fake={"reply": "Yes.", "thinking": "Let me see."})
    answer = await rig.stream([user("hi")], stream_options={"include_usage": True})
    assert answer.text("reasoning_content") == "Let me see."
    assert answer.text() == "Yes."
    assert answer.usage["completion_tokens_details"]["reasoning_tokens"] > 0
    message = (await rig.ask([user("hi")]))["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Let me see.", "Yes.")


async def test_stop_and_length(make_api):
    rig = await make_api(fake={"reply": WORDS})
    stopped = (await rig.ask([user("hi")], stop=["three", "two"]))["choices"][0]
    assert (stopped["message"]["content"], stopped["finish_reason"]) == ("One ", "stop")
    short = await rig.ask([user("hi")], max_tokens=5)
    assert short["choices"][0]["finish_reason"] == "length"
    assert short["usage"]["completion_tokens"] == 5


async def test_the_next_turn_computes_only_what_is_new(make_api):
    rig = await make_api(fake={"reply": WORDS})
    history = [SYSTEM]
    for turn in range(4):
        before = (await rig.engine.stats()).decoded_prompt_tokens_total
        question = f"question {turn}"
        history.append(user(question))
        answer = await rig.stream(history, stream_options={"include_usage": True})
        # A trimming client is as good as any.
        history.append(bot(answer.text().strip()))
        details = answer.usage["prompt_tokens_details"]
        new = answer.usage["prompt_tokens"] - details["cached_tokens"]
        if turn:
            framing = len("<>\nuser\n<>\n<>assistant\n")
            assert new <= len(question) + framing
        computed = (await rig.engine.stats()).decoded_prompt_tokens_total - before
        assert computed == new, "the usage tells what was really computed"


async def test_conversations_in_turn_keep_theirs(make_api):
    rig = await make_api(fake={"reply": WORDS}, n_ctx=2048)
    histories = [[SYSTEM, user(f"I am number {i}")] for i in range(5)]
    for turn in range(3):
        bodies = await asyncio.gather(*(rig.ask(history) for history in histories))
        for history, body in zip(histories, bodies, strict=True):
            usage = body["usage"]
            if turn:
                assert usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"] < 60
            history += [bot(body["choices"][0]["message"]["content"]), user("go on")]


async def test_nothing_is_shared_between_keys(make_api):
    keys = ["first-key-000", "sha256:" + hashlib.sha256(b"second-key-00").hexdigest()]
    rig = await make_api(server={"api_keys": keys}, fake={"reply": WORDS})
    history = [SYSTEM, user("hi"), bot(WORDS), user("and then?")]
    await rig.ask(history[:2], key="first-key-000")
    theirs = await rig.ask(history, key="second-key-00")
    assert theirs["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    mine = await rig.ask(history, key="first-key-000")
    assert mine["usage"]["prompt_tokens_details"]["cached_tokens"] > len(WORDS)
    status, headers, body = await rig.post(history)
    assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")
    assert body["error"]["type"] == "authentication_error"
    for path in ("/v1/models", "/v1/nothing"):
        async with rig.http.get(path) as response:
            assert response.status == 401


async def test_models(make_api):
    other = {"backend": "fake", "fake": {"reply": "other"}}
    rig = await make_api(fake={"reply": "main"}, more_models={"other": other})
    async with rig.http.get("/v1/models") as response:
        ids = [model["id"] for model in (await response.json())["data"]]
    assert ids == ["default", "main", "other"]
    async with rig.http.get("/v1/models/other") as response:
        assert (await response.json())["context_window"] == 4096
    assert (await rig.ask([user("hi")], model="other"))["choices"][0]["message"][
        "content"
    ] == "other"
    status, _, body = await rig.post([user("hi")], model="gpt-9")
    assert (status, body["error"]["code"]) == (404, "model_not_found")
    async with rig.http.get("/v1/models/gpt-9") as response:
        assert response.status == 404
    async with rig.http.post("/v1/embeddings", json={}) as response:
        assert response.status == 404
        assert "message" in (await response.json())["error"]


async def test_what_does_not_fit_is_refused_with_numbers_and_never_cut(make_api):
    rig = await make_api(fake={"reply": "word " * 400}, n_ctx=512)
    status, _, body = await rig.post([SYSTEM, user("x" * 600)])
    assert (status, body["error"]["code"]) == (400, "context_length_exceeded")
    assert "512" in body["error"]["message"]
    filled = await rig.ask([user("x" * 400)], max_tokens=100_000)
    assert filled["usage"]["total_tokens"] <= 512
    assert filled["choices"][0]["finish_reason"] == "length"
    streamed = await rig.stream([user("x" * 600)])
    assert streamed.status == 400


@pytest.mark.parametrize("stream", [True, False])
async def test_who_leaves_frees_the_engine_at_once(make_api, stream):
    rig = await make_api(fake={"reply": "word " * 4000, "token_delay_s": "0.01"}, n_ctx=30000)
    body = {"messages": [user("hi")], "stream": stream, "max_tokens": 20_000}
    asking = asyncio.create_task(_abandoned(rig.web.url, body))

    async def running():
        return (await rig.engine.stats()).n_running == 1

    async def idle():
        return (await rig.engine.stats()).n_running == 0

    await until(running)
    asking.cancel()
    await asyncio.wait({asking})
    await until(idle, 3.0)

    async def booked():
        return rig.figure('hearth_api_requests_total{status="499"}') == 1

    await until(booked)
    assert rig.figure("hearth_api_active") == 0


async def _abandoned(url, body):
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{url}/v1/chat/completions", json=body) as answer,
    ):
        await answer.read()


async def test_who_leaves_the_line_is_not_served(make_api):
    rig = await make_api(fake=SLOW, n_parallel=1)
    first = asyncio.create_task(rig.ask([user("first")], max_tokens=250))
    body = {"messages": [user("second")], "max_tokens": 10}

    async def waiting(n):
        stats = await rig.engine.stats()
        return (stats.n_running, stats.n_waiting) == (1, n)

    await until(lambda: waiting(0))
    second = asyncio.create_task(_abandoned(rig.web.url, body))
    await until(lambda: waiting(1))
    second.cancel()
    await until(lambda: waiting(0), 3.0)
    await first


async def test_a_full_line_says_when_to_come_back(make_api):
    rig = await make_api(fake=SLOW, n_parallel=1, max_waiting=1)
    tasks = [asyncio.create_task(rig.ask([user(f"{i}")], max_tokens=100)) for i in range(1)]

    async def busy(n_waiting):
        stats = await rig.engine.stats()
        return (stats.n_running, stats.n_waiting) == (1, n_waiting)

    await until(lambda: busy(0))
    tasks.append(asyncio.create_task(rig.ask([user("waits")], max_tokens=5)))
    await until(lambda: busy(1))
    for stream in (True, False):
        status, headers, body = await rig.post([user("too many")], stream=stream)
        assert status == 429
        assert int(headers["Retry-After"]) >= 1
        assert body["error"]["type"] == "rate_limit_error"
    await asyncio.gather(*tasks)
    assert rig.figure('hearth_api_requests_total{status="429"}') == 2


async def test_a_model_that_loads_is_unavailable(make_api):
    rig = await make_api(fake={"load_s": "20"}, ready_s=0)
    status, headers, body = await rig.post([user("hi")])
    assert status == 503
    assert int(headers["Retry-After"]) >= 1
    assert body["error"]["code"] == "engine_unavailable"
    async with rig.http.get("/v1/models") as response:
        assert response.status == 200


@pytest.mark.parametrize("stream", [True, False])
async def test_a_reply_goes_on_after_the_engine_died(make_api, stream):
    rig = await make_api(fake=SLOW)
    whole = await rig.ask([user("hi")], max_tokens=120)
    pid = (await rig.engine.stats()).child_pid
    n_before = (await rig.engine.stats()).decoded_generated_tokens_total
    ask = rig.stream if stream else rig.post
    asking = ask([user("hi")], max_tokens=120)
    task = asyncio.create_task(asking)

    async def begun():
        return (await rig.engine.stats()).decoded_generated_tokens_total > n_before + 5

    await until(begun)
    os.kill(pid, signal.SIGKILL)
    result = await task
    text = whole["choices"][0]["message"]["content"]
    if stream:
        assert (result.status, result.done) == (200, True)
        assert result.text() == text
    else:
        status, _, body = result
        assert status == 200
        assert body["choices"][0]["message"]["content"] == text
        assert body["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert (await rig.engine.stats()).n_restarts == 1


async def test_a_reply_that_kills_every_engine_is_told(make_api):
    rig = await make_api(fake=SLOW | {"die": "kill", "die_on": "deadly"})
    result = await rig.stream([user("deadly words")])
    assert result.chunks[-1]["error"]["type"] == "server_error"
    assert not result.done
    await rig.engine.wait_ready(30)
    short = await rig.ask([user("hi")], max_tokens=3)
    assert short["usage"]["completion_tokens"] == 3


async def test_hostile_and_odd_requests_get_one_sentence(make_api):
    rig = await make_api(server={"max_body_bytes": 65_536}, fake={"reply": "ok"})
    url = "/v1/chat/completions"
    cases = [
        ({"data": b"{"}, 400),
        ({"data": b"[1]"}, 400),
        ({"data": b"x" * 70_000}, 413),
        ({"data": b"{}", "headers": {"Content-Encoding": "gzip"}}, 415),
        ({"json": {"messages": []}}, 400),
        ({"json": {"messages": [user("a")], "tools": [{}]}}, 400),
        ({"json": {"messages": [user("a")]}, "headers": {"Host": "evil.example"}}, 403),
        ({"json": {"messages": [user("a")]}, "headers": {"Origin": "http://evil.example"}}, 403),
        ({"json": {"messages": [user("a")]}, "headers": {"X-Forwarded-For": "8.8.8.8"}}, 403),
    ]
    for arguments, status in cases:
        async with rig.http.post(url, **arguments) as response:
            body = await response.json()
            assert response.status == status, body
            assert set(body["error"]) == {"message", "type", "param", "code"}
            assert "Traceback" not in body["error"]["message"]
    async with rig.http.get(url) as response:
        assert response.status == 404
    assert (await rig.ask([user("\ud800 <|im_end|> \x00")]))["choices"][0]["message"][
        "content"
    ] == "ok"
    assert (await rig.ask([bot("I began"), SYSTEM, user("a"), user("b"), bot("c")]))["choices"]


async def test_a_body_that_breaks_off(make_api):
    rig = await make_api(fake={"reply": "ok"})
    with socket.create_connection(("127.0.0.1", rig.web.port)) as raw:
        raw.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{"
        )
        await asyncio.sleep(0.1)
    assert (await rig.ask([user("hi")]))["choices"][0]["message"]["content"] == "ok"


async def test_logs_hold_counts_and_never_words_or_keys(make_api):
    rig = await make_api(server={"api_keys": ["a-very-secret-key"]}, fake={"reply": "secret reply"})
    with structlog.testing.capture_logs() as logs:
        await rig.ask([user("secret question")], key="a-very-secret-key")
        await rig.post([user("secret question")], key="wrong-secret-key", model="secret model")
        await rig.post([user("secret question")], key="a-very-secret-key", model="secret model")
        await rig.post([user("secret question")], key="a-very-secret-key", stop=["secret"] * 99)
    told = [entry for entry in logs if entry["event"] == "api_request"]
    assert [entry["status"] for entry in told] == [200, 401, 404, 400]
    assert told[0]["n_prompt"] > 0
    assert told[0]["n_generated"] >= len("secret reply")
    assert told[0]["caller"] == "key0"
    assert "secret" not in json.dumps(logs, default=str)
    assert rig.figure('hearth_api_tokens_total{kind="generated"}') == told[0]["n_generated"]


async def test_a_fault_of_ours_is_told_without_words(make_api, monkeypatch):
    rig = await make_api(fake={"reply": "ok"})

    async def broken(*_args, **_kwargs):
        raise ValueError("somebody's words")

    monkeypatch.setattr(rig.engine, "render", broken)
    with structlog.testing.capture_logs() as logs:
        status, _, body = await rig.post([user("hi")])
    assert (status, body["error"]["code"]) == (500, "internal_error")
    assert "somebody's words" not in json.dumps([logs, body], default=str)
    assert {"api_failed", "api_request"} <= {entry["event"] for entry in logs}


async def test_our_own_client_speaks_to_it(make_api):
    """One Hearth as the model of another: `backend = "openai"` is an independent reader of these streams."""
    inner = await make_api(fake={"reply": WORDS, "thinking": "Well."})
    url = f"{inner.web.url}/v1"
    remote = {"backend": "openai", "base_url": url, "model": "default", "n_ctx": 4096}
    outer = await make_api(fake={"reply": "unused"}, more_models={"far": remote})
    history = [SYSTEM, user("hi")]
    first = await outer.stream(history, model="far", stream_options={"include_usage": True})
    assert (first.text(), first.text("reasoning_content"), first.finish) == (
        WORDS,
        "Well.",
        ["stop"],
    )
    history += [bot(first.text()), user("go on")]
    second = await outer.ask(history, model="far")
    assert second["choices"][0]["message"]["content"] == WORDS
    usage = second["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] > first.usage["prompt_tokens"] // 2
    for engine in inner.engines.values():
        await engine.close()
    status, _, body = await outer.post(history, model="far")
    assert status in {502, 503}
    assert inner.web.url not in body["error"]["message"]


async def test_a_reader_who_does_not_read_holds_nothing(make_api, monkeypatch):
    """The kernel buffers megabytes for such a reader; here the third write finds them full."""
    rig = await make_api(fake=SLOW)
    write = web.StreamResponse.write
    n_written = 0

    async def stuck(self, data):
        nonlocal n_written
        n_written += 1
        if n_written >= 3:
            await asyncio.Event().wait()
        await write(self, data)

    monkeypatch.setattr("bot.web.openai_api.WRITE_TIMEOUT_S", 0.2)
    monkeypatch.setattr(web.StreamResponse, "write", stuck)
    with pytest.raises(aiohttp.ClientError):
        await rig.stream([user("hi")])
    assert rig.figure('hearth_api_requests_total{status="499"}') == 1

    async def idle():
        return (await rig.engine.stats()).n_running == 0

    await until(idle, 3.0)


async def test_closing_the_server_ends_open_streams(make_api):
    rig = await make_api(fake=SLOW)
    rig.web._runner._shutdown_timeout = 0.2
    asking = asyncio.create_task(rig.stream([user("hi")], max_tokens=350))

    async def begun():
        return (await rig.engine.stats()).decoded_generated_tokens_total > 5

    await until(begun)
    await rig.web.close()
    with pytest.raises(aiohttp.ClientError):
        await asking

    async def idle():
        return (await rig.engine.stats()).n_running == 0

    await until(idle, 3.0)
