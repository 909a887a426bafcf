"""The child of one real run: `python -m engine.vram.tunechild`. Loads, measures, says so on stdout, and ends.

The question comes as JSON on stdin; the answers are lines of JSON, the last one `Measured` or `Failed`. Whatever native code
prints goes to stderr. An abort, a kill for want of memory or a hang are for the parent to see (`engine.vram.tunerun`).
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from engine.config import EngineConfig
from engine.errors import EngineError

_PR_SET_PDEATHSIG: Final = 1
_SAMPLE: Final = Path(__file__).with_name("sample.txt")


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What to run. `is_quality`: the perplexity instead of the speed. `depth` and `seconds` as for `measuring.measure`."""

    config: EngineConfig
    parent: int
    is_quality: bool = False
    depth: int = 0
    seconds: float = 10.0


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """Where the run is: `done` of `total` tokens or steps of a phase."""

    phase: str
    done: int
    total: int


class Loaded(msgspec.Struct, frozen=True, tag="loaded"):
    """The model is there. `base` is what the process took before; `free` the bytes that each card had free then."""

    base: int
    free: dict[str, int]


class Measured(msgspec.Struct, frozen=True, kw_only=True, tag="measured"):
    """The result of a run: `peak` of the process in RAM, `used` of each card; or of a perplexity over `n_tokens`."""

    depth: int = 0
    prompt_tps: float = 0.0
    generation_tps: float = 0.0
    peak: int = 0
    used: dict[str, int] = {}
    perplexity: float = 0.0
    n_tokens: int = 0


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """llama.cpp or we ourselves refused; `reason` is one sentence."""

    reason: str


def sample_hash() -> str:
    """Tells the fixed text from those of other versions of Hearth: perplexities of two texts cannot be compared."""
    return hashlib.blake2b(_SAMPLE.read_bytes(), digest_size=8).hexdigest()


Answer = Progress | Loaded | Measured | Failed


def _main() -> None:
    out = _own_stdout()

    def say(answer: Answer) -> None:
        out.write(msgspec.json.encode(answer) + b"\n")
        out.flush()

    question = msgspec.json.decode(sys.stdin.buffer.read(), type=Question)
    _bind_to(question.parent)
    try:
        if question.is_quality:
            say(_quality(question, say))
        else:
            say(_run(question, say))
    except EngineError as error:
        say(Failed(str(error)))
    # The end of the process gives everything back; freeing takes longer and can only fail.
    os._exit(0)


def _own_stdout() -> BinaryIO:
    """Our answers alone on what was stdout; everything else that is printed goes to stderr."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return out


def _bind_to(parent: int) -> None:
    """Never outlive the parent, and be among the first that the kernel kills when memory runs out."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the dump of a model would fill the disk
    Path("/proc/self/oom_score_adj").write_text("500")


def _run(question: Question, say: Callable[[Answer], None]) -> Measured:
    from engine.backends.base import make_backend
    from engine.vram.measuring import measure

    free = _free(question.config)
    base = _kib("VmRSS")
    backend = make_backend(question.config)
    say(Loaded(base, free))
    text = backend.tokenize(
        _SAMPLE.read_text(encoding="utf-8"), add_special=False, parse_special=False
    )
    speeds = measure(
        backend,
        question.config.n_parallel,
        text,
        depth=question.depth,
        seconds=question.seconds,
        tell=lambda phase, done, total: say(Progress(phase, done, total)),
    )
    left = _free(question.config)
    return Measured(
        depth=speeds.depth,
        prompt_tps=speeds.prompt_tps,
        generation_tps=speeds.generation_tps,
        peak=max(0, _kib("VmHWM") - base),
        used={name: max(0, n_free - left.get(name, n_free)) for name, n_free in free.items()},
    )


def _quality(question: Question, say: Callable[[Answer], None]) -> Measured:
    _prepare()
    from engine.backends.llamaquality import perplexity

    found, n_tokens = perplexity(
        question.config,
        _SAMPLE.read_text(encoding="utf-8"),
        lambda done, total: say(Progress("perplexity", done, total)),
    )
    return Measured(perplexity=found, n_tokens=n_tokens)


def _free(config: EngineConfig) -> dict[str, int]:
    """Bytes that each card has free."""
    if config.backend != "llama.cpp":
        return {}
    _prepare()
    from engine.vram.probe import list_devices

    return {device.label: device.free for device in list_devices() if device.is_card}


def _prepare() -> None:
    """Set what libgomp reads when llama.cpp is loaded: with its own setting, one busy neighbour makes a step 20 times longer."""
    import engine.backends.llamacpp  # noqa: F401


def _kib(field: str) -> int:
    """A figure of this process in bytes."""
    found = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(found.group(1)) * 1024 if found else 0


if __name__ == "__main__":
    _main()
