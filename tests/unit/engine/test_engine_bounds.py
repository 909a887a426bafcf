"""What must stay bounded: stop strings, long texts, memory, the price of a cancel."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.backends.memory import available_bytes, check_memory
from engine.backends.modelfile import find_model
from engine.backends.remote.gate import Gate as RemoteGate
from engine.backends.remote.protocol import Chunk
from engine.backends.remote.reply import Reply
from engine.core.gate import MAX_STOP_CHARS, MAX_STOPS
from engine.core.scheduler import WaitLine
from engine.errors import EngineConfigError
from engine.link import wire
from engine.link.mailbox import Mailbox
from engine.link.textdesk import MAX_CHARS, SHORT_CHARS, TextDesk
from engine.text.template import ChatTemplate
from engine.types import ChatMessage, EngineRequest, FailureCode, Finished, FinishReason, Role
from engine.vram.fingerprint import fingerprint
from tests.support.corekit import fake_kit

GIB = 2**30


# ── the line ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_requests_that_were_cancelled_while_waiting_cost_no_turn() -> None:
    line = WaitLine()
    for i in range(100):
        line.push(f"again{i}", "impatient", 10)
        line.remove(f"again{i}")
    line.push("last", "impatient", 10)
    for i in range(3):
        line.push(f"other{i}", "other", 10)
    assert line.order() == ["last", "other0", "other1", "other2"]


def test_a_cancel_in_the_middle_does_not_make_an_owners_requests_meet() -> None:
    line = WaitLine()
    for i in range(4):
        line.push(f"a{i}", "a", 10)
    line.remove("a1")
    line.push("a4", "a", 10)
    line.push("b0", "b", 10)
    assert line.order() == ["a0", "b0", "a2", "a3", "a4"]
    assert not line.remove("a1")


def test_those_who_name_no_owner_are_not_one_owner() -> None:
    gate = RemoteGate(1, 10, 2)
    assert all(gate.enter("", 10) for _ in range(8))


# ── stop strings ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "stop", [("x" * (MAX_STOP_CHARS + 1),), tuple(str(i) for i in range(MAX_STOPS + 1))]
)
def test_stop_strings_that_would_slow_every_step_are_refused(stop: tuple[str, ...]) -> None:
    kit = fake_kit()
    kit.ask("a", stop=stop)
    assert kit.failed("a").code is FailureCode.BAD_REQUEST
    kit.ask("b", stop=("x" * MAX_STOP_CHARS, *map(str, range(MAX_STOPS - 1))))
    kit.run()
    assert kit.text("b") == "Hello, 世界 🙂!"


def test_the_end_of_turn_of_a_template_without_control_tokens_ends_a_reply() -> None:
    def tokenize(text: str, parse_special: bool) -> list[int]:
        return list(text.encode())

    template = ChatTemplate(
        "", bos_text="", eos_text="", add_bos=False, tokenize=tokenize, special_texts=()
    )
    kit = fake_kit({"reply": "Fine.<|im_end|>\n<|im_start|>user"})
    kit.core._turns = template.turns
    kit.ask("a")
    kit.run()
    assert kit.text("a") == "Fine."
    end = kit.finished("a")
    assert (end.reason, end.n_answer) == (FinishReason.STOP, len("Fine."))


# ── long texts ───────────────────────────────────────────────────────────────────────────────────────────────────────


class _NoRenderer:
    def render(self, messages: tuple[ChatMessage, ...], *, add_generation_prompt: bool) -> object:
        raise AssertionError("never asked")


def test_short_texts_pass_long_ones_and_endless_ones_are_refused() -> None:
    answers: list[wire.Report] = []
    desk = TextDesk(len, _NoRenderer(), answers.append)  # type: ignore[arg-type]  # renders nothing here
    desk.put(wire.AskCount(seq=1, text="x" * (SHORT_CHARS + 1)))
    desk.put(wire.AskCount(seq=2, text="short"))
    long = ChatMessage(role=Role.USER, content="x" * (MAX_CHARS // 2 + 1))
    desk.put(wire.AskRender(seq=3, messages=(long, long), add_generation_prompt=True))
    desk.put(wire.AskCount(seq=4, text="y"))
    for _ in range(4):
        desk.answer_next()
    assert answers[:3] == [
        wire.CountAnswer(seq=2, n_tokens=5),
        wire.CountAnswer(seq=4, n_tokens=1),
        wire.CountAnswer(seq=1, n_tokens=SHORT_CHARS + 1),
    ]
    assert isinstance(answers[3], wire.Refusal)
    assert f"{MAX_CHARS} can be counted" in answers[3].message


def test_a_server_that_never_ends_is_stopped() -> None:
    request = EngineRequest(id="r", max_new_tokens=10)
    reply = Reply(request, Mailbox(), 0.0)
    n_taken = next(n for n in range(10_000) if not reply.take(Chunk(text="word ")))
    assert 10 < n_taken < 1000
    end = reply.end()
    assert isinstance(end, Finished)
    assert end.reason is FinishReason.LENGTH


# ── memory and files ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_cache_that_does_not_fit_is_refused_with_both_numbers() -> None:
    check_memory("models.m", GIB, GIB)
    with pytest.raises(EngineConfigError, match=r"models\.m: .* 45\.0 GiB and 2\.5 GiB"):
        check_memory("models.m", 45 * GIB, 5 * GIB // 2)


def test_the_limit_of_a_container_counts(tmp_path: Path) -> None:
    free = available_bytes(tmp_path)
    assert free > 0
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("5000000\n")
    assert available_bytes(tmp_path) > 5_000_000
    (tmp_path / "memory.max").write_text("9000000\n")
    assert available_bytes(tmp_path) == 4_000_000
    (tmp_path / "memory.stat").write_text("anon 3\ninactive_file 1000000\nactive_file 500000\n")
    assert available_bytes(tmp_path) == 5_500_000


@pytest.mark.parametrize("path", ["/tmp/" + "a" * 5000, "~nobody-of-this-name/m.gguf"])
def test_paths_that_the_system_refuses_are_settings_faults(path: str) -> None:
    with pytest.raises(EngineConfigError, match=r"models\.m\.path"):
        find_model("m", path)


def test_a_file_that_may_not_be_read_is_a_settings_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"GGUF")

    def forbidden(
        self: Path, mode: str = "r"
    ) -> None:  # the tests may run as root, who may read everything
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", forbidden)
    with pytest.raises(EngineConfigError, match="Permission denied"):
        find_model("m", str(model))
    with pytest.raises(EngineConfigError, match="cannot be read: Permission denied"):
        fingerprint(model)
