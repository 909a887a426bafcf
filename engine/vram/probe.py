"""Asks llama.cpp itself, in a child process: the exact KV and compute buffers of a model and settings, and the devices.

The child loads metadata only (`no_alloc`) and opens a context that allocates nothing; llama.cpp logs what it would take.
An abort or a hang of the child is an answer like any other (`ProbeFailed`). Only the child imports llama_cpp.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Final

import msgspec

from engine.backends.modelfile import explain_context_failure, explain_load_failure, find_model
from engine.config import EngineConfig
from engine.errors import EngineError
from engine.vram.child import Answer, ask
from engine.vram.devices import Device
from engine.vram.settings import context_settings

_MIB: Final = 2**20
_NO_MODEL, _NO_CONTEXT, _NO_WORKER = 3, 4, 5
_KINDS: Final = {0: "cpu", 1: "gpu", 2: "igpu", 3: "accel"}  # ggml_backend_dev_type
_KV_SIZE = re.compile(r"^llama_kv_cache\w*: size = +([\d.]+) MiB", re.MULTILINE)
_KV_LAYER = re.compile(r"^llama_kv_cache\w*: layer +\d+: dev = (\S+)", re.MULTILINE)
_STATE_SIZE = re.compile(r"^llama_memory_recurrent: size = +([\d.]+) MiB", re.MULTILINE)
_OUTPUT = re.compile(r"^\S+ +\S+ +output buffer size = +([\d.]+) MiB", re.MULTILINE)
_COMPUTE = re.compile(r"^\S+ +(\S+) compute buffer size = +([\d.]+) MiB", re.MULTILINE)
_BUFFERS = re.compile(r"^load_tensors: +(\S+) model buffer size", re.MULTILINE)


class ProbeFailed(EngineError):
    """The child died, hung, or llama.cpp refused; the text is one sentence."""


class DryRun(msgspec.Struct, frozen=True, kw_only=True):
    """What llama.cpp would take: bytes, from figures that it logs with two digits of a MiB.

    `compute` is by buffer (CPU, CUDA0, CUDA_Host …), `kv_layers` the layers of cache by device, `weight_buffers` the
    kinds of buffer that weights go to (CPU_REPACK: a rearranged copy).
    """

    n_cells: int
    n_ctx_train: int
    weight_bytes: int
    kv_bytes: int
    state_bytes: int
    output_bytes: int
    compute: dict[str, int]
    kv_layers: dict[str, int]
    weight_buffers: tuple[str, ...]

    @property
    def total_bytes(self) -> int:
        """Everything together."""
        return (
            self.weight_bytes
            + self.kv_bytes
            + self.state_bytes
            + self.output_bytes
            + sum(self.compute.values())
        )


class _Question(msgspec.Struct, frozen=True):
    config: EngineConfig | None = None


class _Opened(msgspec.Struct, frozen=True):
    n_cells: int
    n_ctx_train: int
    weight_bytes: int


class Listed(msgspec.Struct, frozen=True):
    """A device as llama.cpp names it; bytes. `kind` is cpu, gpu, igpu, accel or other."""

    name: str
    description: str
    kind: str
    free: int
    total: int

    @property
    def is_card(self) -> bool:
        """Whether layers can be put on it."""
        return self.kind in {"gpu", "igpu"}

    @property
    def label(self) -> str:
        """What `Device.name` is for it."""
        return f"{self.name} ({self.description})"


def dry_run(config: EngineConfig, timeout_s: float = 60.0) -> DryRun:
    """The exact sizes for these settings on this build. Takes 0.5 to 2 s. Raises ProbeFailed, EngineConfigError."""
    path = find_model(config.name, config.path)
    answer, log, status = _ask(_Question(config), timeout_s)
    if status == _NO_MODEL:
        raise ProbeFailed(explain_load_failure(path, log.splitlines()))
    if status == _NO_CONTEXT:
        raise ProbeFailed(explain_context_failure(log.splitlines()))
    if status == _NO_WORKER:
        raise ProbeFailed(log.splitlines()[-1])
    if status != 0:
        raise ProbeFailed(explain_death(log, status))
    return _parse(msgspec.json.decode(answer, type=_Opened), log)


def build_devices(timeout_s: float = 30.0) -> tuple[Device, ...]:
    """The devices that this build of llama.cpp can use, the CPU aside. Raises ProbeFailed."""
    answer, log, status = _ask(_Question(), timeout_s)
    if status != 0:
        raise ProbeFailed(explain_death(log, status))
    return tuple(
        Device(d.label, d.kind, d.free, 0.0, True)
        for d in msgspec.json.decode(answer, type=list[Listed])
        if d.is_card
    )


def _ask(question: _Question, timeout_s: float) -> tuple[bytes, str, int]:
    """The child's answer, llama.cpp's log, and the exit status."""
    try:
        answer = ask("engine.vram.probe", msgspec.json.encode(question), timeout_s)
    except TimeoutError as error:
        raise ProbeFailed(str(error)) from None
    return answer.output, answer.log, answer.status


def explain_death(log: str, status: int) -> str:
    """One sentence for a child that ended by `status`, from what it printed."""
    answer = Answer(b"", log, status)
    return f"llama.cpp ended by {answer.how} on these settings: {answer.last_words}"


def _parse(opened: _Opened, log: str) -> DryRun:
    def total(pattern: re.Pattern[str]) -> int:
        return round(sum(float(size) for size in pattern.findall(log)) * _MIB)

    compute: Counter[str] = Counter()
    for buffer, size in _COMPUTE.findall(log):
        compute[buffer] += round(float(size) * _MIB)
    return DryRun(
        n_cells=opened.n_cells,
        n_ctx_train=opened.n_ctx_train,
        weight_bytes=opened.weight_bytes,
        kv_bytes=total(_KV_SIZE),
        state_bytes=total(_STATE_SIZE),
        output_bytes=total(_OUTPUT),
        compute=dict(compute),
        kv_layers=dict(Counter(_KV_LAYER.findall(log))),
        weight_buffers=tuple(sorted(set(_BUFFERS.findall(log)))),
    )


# The child.


def _main() -> int:
    import llama_cpp as llama

    def write(_level: int, text: bytes, _user_data: object) -> None:
        sys.stderr.buffer.write(text)

    callback = llama.llama_log_callback(write)
    llama.llama_log_set(callback, ctypes.c_void_p(0))
    question = msgspec.json.decode(sys.stdin.buffer.read(), type=_Question)
    llama.llama_backend_init()
    if question.config is None:
        sys.stdout.buffer.write(msgspec.json.encode(list_devices()))
        return 0
    return _open(llama, question.config)


def _open(llama: Any, config: EngineConfig) -> int:
    from engine.backends.llamaparams import context_params, model_params

    if reason := _absent_workers(config):
        sys.stderr.write(reason + "\n")
        return _NO_WORKER
    params, _overrides = model_params(config)
    params.no_alloc = True
    params.load_mode = llama.LLAMA_LOAD_MODE_NONE  # with mmap, no_alloc is an abort
    path: Path = find_model(config.name, config.path)
    model = llama.llama_model_load_from_file(os.fsencode(path), params)
    if not model:
        return _NO_MODEL
    n_ctx_train = int(llama.llama_model_n_ctx_train(model))
    context = llama.llama_init_from_model(
        model, context_params(context_settings(config, n_ctx_train))
    )
    if not context:
        return _NO_CONTEXT
    opened = _Opened(
        int(llama.llama_n_ctx(context)), n_ctx_train, int(llama.llama_model_size(model))
    )
    sys.stdout.buffer.write(msgspec.json.encode(opened))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(
        0
    )  # nothing to give back; freeing a context without buffers is not a path that llama.cpp tests


def _absent_workers(config: EngineConfig) -> str:
    """Make the RPC workers devices of this process. Returns why one cannot be; "" = all are there."""
    if not config.rpc:
        return ""
    from engine.backends.llamarpc import add_worker
    from engine.rpc.client import Workers

    workers = Workers(config.name)
    workers.connect(config.rpc, add_worker)
    reasons = [f"the RPC worker at {name}: {why}" for name, why in workers.absent.items()]
    return "; ".join(reasons)


def list_devices() -> list[Listed]:
    """All devices of this build. For child processes: it loads llama.cpp."""
    from engine.backends import llamalib

    return [_listed(llamalib, llamalib.device_at(i)) for i in range(llamalib.n_devices())]


def _listed(lib: Any, device: Any) -> Listed:
    kind = _KINDS.get(lib.device_kind(device), "other")
    name, description = (lib.device_text(what, device) for what in ("name", "description"))
    return Listed(name, description, kind, *lib.device_memory(device))


if __name__ == "__main__":
    sys.exit(_main())
