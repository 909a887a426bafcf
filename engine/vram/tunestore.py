"""The tuner's results while it works: every step is on the disk before the next one begins. Owned by one tuner at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from msgspec.structs import replace

from engine.config import EngineConfig
from engine.errors import EngineConfigError
from engine.vram.runs import DIED, VERSION, Asked, Begun, Knobs, Quality, Results, Run
from engine.vram.tuned import Identity, file_name, places, read_results, write_results

# How often a run may end the whole tuner (or the machine) before it counts as a death.
_TRIES = 2


class TuneStore:
    """One file of results, held open against a second tuner. Make it with `opened`."""

    def __init__(self, file: Path, results: Results) -> None:
        self.file = file
        self._results = results

    def runs(self, asked: Asked) -> tuple[Run, ...]:
        """The runs for what was asked, in the order in which they were made."""
        return tuple(run for run in self._results.runs if run.asked == asked)

    @property
    def qualities(self) -> tuple[Quality, ...]:
        """All perplexities."""
        return self._results.qualities

    def begin(self, asked: Asked, knobs: Knobs) -> Run | None:
        """Note that a run begins. A run is returned instead when these settings have ended the tuner too often."""
        n_times = sum(
            b.n_times for b in self._results.begun if (b.asked, b.knobs) == (asked, knobs)
        )
        if n_times >= _TRIES:
            reason = f"a run of these settings did not come back {n_times} times"
            run = Run(asked=asked, knobs=knobs, outcome=DIED, reason=reason)
            self.add(run)
            return run
        mark = Begun(asked=asked, knobs=knobs, n_times=n_times + 1)
        self._write(begun=(*self._others(asked, knobs), mark))
        return None

    def give_up(self, asked: Asked, knobs: Knobs) -> None:
        """The run was stopped by a person: as if it had never begun."""
        self._write(begun=self._others(asked, knobs))

    def add(self, run: Run) -> None:
        """A run has ended; it takes the place of an earlier one of the same settings."""
        runs = {(r.asked, r.knobs): r for r in self._results.runs} | {(run.asked, run.knobs): run}
        self._write(runs=tuple(runs.values()), begun=self._others(run.asked, run.knobs))

    def add_quality(self, quality: Quality) -> None:
        """A perplexity is known."""
        kept = (q for q in self._results.qualities if kind_of(q) != kind_of(quality))
        self._write(qualities=(*kept, quality))

    def forget(self, asked: Asked) -> None:
        """Drop what was measured for `asked`, and all perplexities."""
        kept = tuple(run for run in self._results.runs if run.asked != asked)
        self._write(runs=kept, qualities=(), begun=())

    def _others(self, asked: Asked, knobs: Knobs) -> tuple[Begun, ...]:
        return tuple(b for b in self._results.begun if (b.asked, b.knobs) != (asked, knobs))

    def _write(self, **changes: object) -> None:
        self._results = replace(self._results, **changes)
        try:
            write_results(self.file, self._results)
        except OSError as error:
            raise EngineConfigError(
                f"{self.file} cannot be written: {error.strerror}; what was measured before is kept"
            ) from error


def kind_of(quality: Quality) -> tuple[str, str, str]:
    """What a perplexity depends on besides the model."""
    return quality.cache_type_k, quality.cache_type_v, quality.flash_attention


@contextmanager
def opened(config: EngineConfig, model: Path, whose: Identity) -> Iterator[tuple[TuneStore, str]]:
    """The store in the best folder that can be written, and a sentence about results there that are not used ("" = none).

    Raises EngineConfigError when no folder can be written, or another tuner works on this model.
    """
    reasons = []
    for folder in places(config, model):
        file = folder / file_name(model, whose)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = file.with_name(f".{file.name}.lock").open("wb")
        except OSError as error:
            reasons.append(f"{folder}: {error.strerror}")
            continue
        with lock:
            if not _is_ours(lock):
                raise EngineConfigError(
                    f"another `hearth tune` works on {model.name}; wait for it, or stop it"
                )
            found, note = read_results(file, whose)
            try:
                yield TuneStore(file, found or _empty(whose)), note
            finally:
                Path(lock.name).unlink(missing_ok=True)
        return
    where = "; ".join(reasons) or "no folder is set"
    raise EngineConfigError(
        f"the results cannot be kept anywhere ({where}); make one of them writable"
    )


def _is_ours(lock: BinaryIO) -> bool:
    """Whether the lock is taken, and of the file that lies there: who had it before takes its name away."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.fstat(lock.fileno()).st_ino == Path(lock.name).stat().st_ino
    except (BlockingIOError, FileNotFoundError):
        return False


def _empty(whose: Identity) -> Results:
    return Results(
        version=VERSION, device=whose.device, build=whose.build, fingerprint=whose.fingerprint
    )
