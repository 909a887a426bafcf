"""Measures in a process of its own how much memory a model really takes: `python -m tests.support.memorypeak SETTINGS`.

SETTINGS is an EngineConfig as JSON. One conversation prefills the largest batch and the others a short one, then all
decode together; the answer is the peak (VmHWM) less what the process had just before the model was loaded, in bytes.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import msgspec

from engine.config import EngineConfig


def measured_peak(config: EngineConfig) -> int:
    """Bytes that loading and using a model added to a fresh process."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.memorypeak", msgspec.json.encode(config).decode()],
        capture_output=True,
        check=True,
        timeout=120,
        cwd=Path(__file__).parents[2],
    )
    return int(done.stdout.split()[-1])  # behind what may have been logged


def _kib(field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found.group(1)) * 1024


def _use(config: EngineConfig) -> int:
    from engine.backends.base import BatchPart, DecodeStatus
    from engine.backends.llamacpp import LlamaBackend

    before = _kib("VmRSS")
    backend = LlamaBackend(config)
    prompt = [5 + i % 50 for i in range(backend.n_batch)]
    lengths = [len(prompt)] + [32] * (config.n_parallel - 1)
    for seq_id, length in enumerate(lengths):
        part = BatchPart(seq_id, 0, prompt[:length], 1)
        assert backend.decode([part]) is DecodeStatus.DONE
    together = [BatchPart(i, length, [7], 1) for i, length in enumerate(lengths)]
    assert backend.decode(together) is DecodeStatus.DONE
    peak = _kib("VmHWM")
    backend.close()
    return peak - before


if __name__ == "__main__":
    print(_use(msgspec.json.decode(sys.argv[1], type=EngineConfig)))  # noqa: T201
