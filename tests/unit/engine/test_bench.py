"""The benchmark's arithmetic and its honesty: what it asks, what it counts, what it does when an engine fails."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Sequence

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from rich.console import Console

from engine.bench import BenchFailed, BenchPlan, connected, run, run_with_progress, server_at
from engine.bench.counters import Counters, LocalCounters, ServerCounters, read_page
from engine.bench.figures import Figure, of_turn, of_wave
from engine.config import OpenAISettings
from engine.errors import EngineConfigError, EngineUnavailable
from engine.types import (
    ChatMessage,
    Delta,
    EngineEvent,
    EngineRequest,
    EngineState,
    EngineStats,
    Failed,
    FailureCode,
    Finished,
    FinishReason,
    ModelInfo,
    Rendered,
    Role,
    Usage,
)

WAVE = (
    "tokens_per_s",
    "guessed_share",
    "first_token_s",
    "prompt_tokens_computed",
    "prompt_tokens_decoded",
    "python_share",
)
TURN = (
    "first_token_s",
    "prompt_tokens",
    "prompt_tokens_computed",
    "prompt_tokens_decoded",
    "tokens_restored",
    "bytes_written",
)
SMALL = BenchPlan(concurrency=(1, 3), conversations=2, turns=2, max_new_tokens=5, rounds=2)


class ScriptedEngine:
    """Answers every request with `max_new_tokens` ids; one id of thinking first. Keeps what it was asked.

    `exact = False`: like a remote server, without ids and, if `tells_usage` is False, without counts.
    """

    def __init__(
        self, log: list[str], name: str, *, exact: bool = True, tells_usage: bool = True
    ) -> None:
        self.info: ModelInfo | None = ModelInfo(
            name=name, path="", fingerprint="f", n_ctx_tokens=4096, description=f"scripted {name}"
        )
        self.requests: list[EngineRequest] = []
        self.forgotten: list[str] = []
        self.fail_at: int | None = None
        self.most_at_once = 0
        self._running = 0
        self._log = log
        self._name = name
        self._exact = exact
        self._tells_usage = tells_usage

    async def start(self) -> None:
        """Nothing to start."""

    async def wait_ready(self, timeout_s: float) -> ModelInfo:
        assert self.info is not None
        return self.info

    async def close(self) -> None:
        """Nothing to close."""

    async def submit(self, request: EngineRequest) -> AsyncIterator[EngineEvent]:
        self._log.append(self._name)
        self.requests.append(request)
        if self.fail_at == len(self.requests):
            yield Failed(
                request_id=request.id, code=FailureCode.BUSY, retryable=True, message="full"
            )
            return
        self._running += 1
        self.most_at_once = max(self.most_at_once, self._running)
        await asyncio.sleep(0.001)
        ids = tuple(range(100, 100 + request.max_new_tokens)) if self._exact else ()
        yield Delta(request_id=request.id, token_ids=ids[:1], thinking="hm")
        for i in range(1, request.max_new_tokens):
            yield Delta(request_id=request.id, token_ids=ids[i : i + 1], text="x")
        self._running -= 1
        usage = Usage()
        if self._tells_usage:
            usage = Usage(n_prompt=40, n_cached=30, n_generated=request.max_new_tokens)
        yield Finished(
            request_id=request.id,
            reason=FinishReason.LENGTH,
            usage=usage,
            answer_start=1 if self._exact else 0,
            n_answer=request.max_new_tokens - 1 if self._exact else 0,
        )

    async def cancel(self, request_id: str) -> None:
        """Never asked."""

    async def warm(self, cache_key: str, scope: str, tokens: Sequence[int]) -> None:
        """Never asked."""

    async def forget(self, cache_key: str) -> None:
        self.forgotten.append(cache_key)

    async def stats(self) -> EngineStats:
        n = len(self.requests)
        return EngineStats(
            state=EngineState.READY,
            decoded_prompt_tokens_total=12 * n,
            decoded_generated_tokens_total=5 * n,
            accepted_tokens_total=n,
            kv_saved_bytes_total=1000 * n,
        )

    async def count(self, text: str) -> int:
        return len(text)

    async def render(
        self, messages: Sequence[ChatMessage], *, add_generation_prompt: bool = True
    ) -> Rendered:
        n_tokens = 10 * len(messages)
        ids = tuple(range(n_tokens)) if self._exact else ()
        starts = tuple(range(0, n_tokens, 10)) if self._exact else ()
        return Rendered(token_ids=ids, n_tokens=n_tokens, starts=starts, exact=self._exact)


async def test_every_figure_is_there_with_a_sample_per_round():
    engine = ScriptedEngine([], "one")
    report = await run(SMALL, {"one": engine})
    names = [figure.what.name for figure in report.figures]
    assert names == [
        *(of_wave(n, kind).name for n in (1, 3) for kind in WAVE),
        *(of_turn(n, kind).name for n in (1, 2) for kind in TURN),
    ]
    shares = {"wave@1.python_share", "wave@3.python_share"}  # it told no times
    assert all(
        len(figure.samples.get("one", ())) == (0 if figure.what.name in shares else 2)
        for figure in report.figures
    )
    medians = {figure.what.name: figure.median("one") for figure in report.figures}
    assert medians["turn@2.prompt_tokens"] == 40
    assert medians["turn@2.prompt_tokens_computed"] == 10
    assert medians["turn@2.prompt_tokens_decoded"] == 12
    assert medians["turn@2.bytes_written"] == 1000
    assert medians["wave@3.prompt_tokens_decoded"] == 12
    assert medians["wave@3.guessed_share"] == 20
    assert engine.most_at_once == 3


async def test_what_is_asked_of_an_engine():
    engine = ScriptedEngine([], "one")
    await run(SMALL, {"one": engine})
    warm_up, *rest = engine.requests
    assert warm_up.max_new_tokens == 8
    assert len(rest) == SMALL.rounds * (1 + 3 + 2 * 2)
    assert all(r.sampling.temperature == 0 and r.max_new_tokens == 5 for r in rest)
    assert len({r.id for r in engine.requests}) == len(engine.requests)
    assert len({r.messages[-1].content for r in engine.requests}) == len(engine.requests)
    chats = [r for r in rest if r.cache_key]
    assert len({r.cache_key for r in chats}) == SMALL.rounds * SMALL.conversations
    assert sorted(engine.forgotten) == sorted({r.cache_key for r in chats})
    assert all(r.n_shared_prefix == 10 for r in rest)


async def test_the_second_turn_carries_the_answer_by_its_ids_and_without_thinking():
    engine = ScriptedEngine([], "one")
    await run(
        BenchPlan(concurrency=(), conversations=1, turns=2, max_new_tokens=4, rounds=1),
        {"one": engine},
    )
    system, question, answer, follow_up = engine.requests[-1].messages
    assert [m.role for m in (system, question, answer, follow_up)] == [
        Role.SYSTEM,
        Role.USER,
        Role.ASSISTANT,
        Role.USER,
    ]
    assert answer.token_ids == (101, 102, 103)
    assert answer.content == "xxx"


async def test_engines_take_turns_and_the_order_changes_every_round():
    log: list[str] = []
    engines = {name: ScriptedEngine(log, name) for name in ("a", "b")}
    report = await run(BenchPlan(concurrency=(1,), turns=0, rounds=2, max_new_tokens=2), engines)
    assert log == ["a", "b", "a", "b", "b", "a"]
    assert list(report.to_json()["figures"]) == [of_wave(1, kind).name for kind in WAVE]


async def test_a_server_without_ids_and_counts_is_counted_by_its_pieces():
    engine = ScriptedEngine([], "far", exact=False, tells_usage=False)
    report = await run(
        BenchPlan(concurrency=(1,), turns=1, rounds=1, max_new_tokens=4),
        {"far": engine},
        counters={"far": ServerCounters("http://127.0.0.1:9/v1")},
    )
    figures = {figure.what.name: figure for figure in report.figures}
    assert figures["turn@1.prompt_tokens_decoded"].median("far") is None
    assert figures["wave@1.tokens_per_s"].median("far") is not None
    assert figures["turn@1.prompt_tokens_computed"].median("far") is None
    assert all(request.prompt_tokens == () and request.messages for request in engine.requests)
    assert "of it computed" not in printed(report.view())  # nobody told it


async def test_a_failure_ends_the_benchmark_in_one_sentence():
    for fail_at in (1, 2, 3, 7):
        engine = ScriptedEngine([], "one")
        engine.fail_at = fail_at
        with pytest.raises(BenchFailed, match=r"one failed \(busy\): full"):
            await run(SMALL, {"one": engine})
    engine = ScriptedEngine([], "one")
    engine.info = None
    with pytest.raises(BenchFailed, match="one is not ready"):
        await run(SMALL, {"one": engine})


async def test_kept_conversations_are_forgotten_also_after_a_failure():
    engine = ScriptedEngine([], "one")
    engine.fail_at = 4
    with pytest.raises(BenchFailed):
        await run(BenchPlan(concurrency=(), conversations=2, turns=3, rounds=1), {"one": engine})
    assert set(engine.forgotten) == {
        request.cache_key for request in engine.requests if request.cache_key
    }


async def test_progress_counts_up_to_the_end():
    steps: list[tuple[int, int, str]] = []
    await run(
        SMALL,
        {"a": ScriptedEngine([], "a"), "b": ScriptedEngine([], "b")},
        lambda *step: steps.append(step),
    )
    assert [done for done, _, _ in steps] == list(range(15))
    assert {total for _, total, _ in steps} == {14}
    assert steps[-1] == (14, 14, "done")
    assert "b: conversations, round 2" in [what for _, _, what in steps]


async def test_table_and_json_say_the_same():
    engines = {name: ScriptedEngine([], name) for name in ("hearth", "other")}
    console = Console(file=io.StringIO(), width=120)
    report = await run_with_progress(SMALL, engines, console)
    told = json.loads(json.dumps(report.to_json()))
    assert told["engines"]["other"]["description"] == "scripted other"
    assert told["plan"]["max_new_tokens"] == 5
    assert told["machine"]["cpus"] >= 1
    figure = told["figures"]["wave@3.tokens_per_s"]
    assert figure["higher_is_better"] is True
    assert set(figure["ratio"]) == {"other"}
    text = printed(report.view())
    assert "÷ other" in text
    assert "2 conversations in rotation" in text
    (row,) = [line for line in text.splitlines() if "3 at once" in line and "tok/s" in line]
    assert f"{figure['median']['hearth']:.1f} tok/s" in row
    assert f"{figure['ratio']['other']:.2f}" in row


def printed(table: object, width: int = 160) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    output = console.file
    assert isinstance(output, io.StringIO)
    return output.getvalue()


async def test_the_tables_fit_a_terminal_and_say_what_to_know(monkeypatch):
    monkeypatch.setattr("engine.bench.report.os.getloadavg", lambda: (99.0, 0.0, 0.0))
    engines = {name: ScriptedEngine([], name) for name in ("hearth", "no tiers", "against")}
    report = await run(SMALL, engines)
    text = printed(report.view(), width=100)
    # The scripted engine says that it decodes one reply at once.
    assert "hearth decodes 1 at once" in text.replace("\n", " ")
    assert "machine was busy" in text
    assert all(len(line.rstrip()) <= 100 for line in text.splitlines())
    assert "…" not in text
    assert report.to_json()["machine"]["load_1m_at_end"] == 99.0


async def test_where_there_is_no_terminal_every_step_is_a_line():
    console = Console(file=io.StringIO(), width=120)
    plan = BenchPlan(concurrency=(2,), turns=0, rounds=1, max_new_tokens=2)
    await run_with_progress(plan, {"one": ScriptedEngine([], "one")}, console)
    output = console.file
    assert isinstance(output, io.StringIO)
    assert output.getvalue().splitlines() == [
        "0/2 one: warm-up",
        "1/2 one: 2 at once, round 1",
        "2/2 done",
    ]


async def test_on_a_terminal_there_is_a_bar():
    console = Console(file=io.StringIO(), width=120, force_terminal=True)
    plan = BenchPlan(concurrency=(2,), turns=0, rounds=1, max_new_tokens=2)
    await run_with_progress(plan, {"one": ScriptedEngine([], "one")}, console)
    output = console.file
    assert isinstance(output, io.StringIO)
    assert "2/2" in output.getvalue()


HEARTH_PAGE = """# HELP engine_decoded_prompt_tokens_total Prompt tokens
# TYPE engine_decoded_prompt_tokens_total counter
engine_decoded_prompt_tokens_total{model="main"} 1200.0
engine_decoded_prompt_tokens_total{model="two } words"} 34.0
engine_step_decode_seconds_total{model="main"} 9.5
engine_step_python_seconds_total{model="main"} 0.5 1719000000
odd line without a number
"""


def test_hearths_own_page_is_read_over_all_models():
    counters = read_page(HEARTH_PAGE)
    assert counters.decoded_prompt_tokens == 1234
    assert counters.python_share == 0.05
    assert counters.saved_bytes is None


def test_llama_servers_page_is_read_too():
    page = "llamacpp:prompt_tokens_total 77\nllamacpp:tokens_predicted_total 5\n"
    assert read_page(page) == Counters(decoded_prompt_tokens=77, generated_tokens=5)


def test_only_what_was_added_in_between_counts():
    before = Counters(decoded_prompt_tokens=10, saved_bytes=5, decode_s=1.0, python_s=0.0)
    after = Counters(decoded_prompt_tokens=30, saved_bytes=2, decode_s=3.0, python_s=1.0)
    added = after.since(before)
    assert added.decoded_prompt_tokens == 20
    assert added.saved_bytes is None  # it began anew: a restart
    assert added.python_share == pytest.approx(1 / 3)
    assert before.since(before).python_share is None


async def test_an_engine_of_ours_tells_its_stats():
    engine = ScriptedEngine([], "one")
    engine.requests.append(EngineRequest(id="r"))
    assert (await LocalCounters(engine).read()).decoded_prompt_tokens == 12


@pytest.mark.parametrize("path", ["/v1", "/v1/", ""])
async def test_a_server_is_asked_for_its_metrics_and_left_alone_when_it_has_none(path):
    pages = [web.Response(text=HEARTH_PAGE), web.Response(status=404)]
    asked: list[str] = []

    async def metrics(request: web.Request) -> web.Response:
        asked.append(request.path)
        return pages[len(asked) - 1]

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    async with TestServer(app) as server:
        source = ServerCounters(f"http://127.0.0.1:{server.port}{path}")
        assert (await source.read()).decoded_prompt_tokens == 1234
        assert await source.read() == Counters()
        assert await source.read() == Counters()
    assert asked == ["/metrics", "/metrics"]


def test_a_ratio_is_the_median_of_the_rounds_ratios():
    what = of_wave(1, "first_token_s")
    figure = Figure(what, {"a": (1.0, 9.0, 4.0), "b": (2.0, 3.0, 4.0)})
    assert figure.median("a") == 4.0
    assert figure.ratio("a", "b") == 1.0
    assert figure.ratio("a", "nobody") is None
    assert figure.median("nobody") is None
    assert Figure(what, {"a": (1.0,), "b": (0.0,)}).ratio("a", "b") is None
    no_merit = of_wave(1, "python_share")
    assert Figure(no_merit, {"a": (1.0,), "b": (2.0,)}).ratio("a", "b") is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"concurrency": (0,)},
        {"concurrency": (), "turns": 0},
        {"rounds": 0},
        {"turns": -1},
        {"max_new_tokens": 0},
        {"conversations": 0},
    ],
)
def test_a_plan_that_measures_nothing_is_refused(wrong):
    with pytest.raises(EngineConfigError, match="at least one"):
        BenchPlan(**wrong)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8000", "http://127.0.0.1:8000/", "http://127.0.0.1:8000/v1/"]
)
def test_a_server_may_be_named_with_or_without_v1(url):
    settings = server_at(url, model="m", api_key="k")
    assert settings.base_url == "http://127.0.0.1:8000/v1"
    assert (settings.model, settings.api_key) == ("m", "k")


async def test_a_server_that_cannot_be_reached_is_closed_again():
    nowhere = OpenAISettings(name="far", base_url="http://127.0.0.1:9/v1", model="m", n_ctx=4096)
    with pytest.raises(EngineUnavailable):
        async with connected({"far": nowhere}, server_timeout_s=0.2):
            pytest.fail("nobody listens there")
