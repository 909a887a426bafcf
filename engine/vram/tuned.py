"""What `hearth tune` measured, kept beside the model by device, build and model, and read again when settings are chosen.

One JSON file per device and build: machines that share a folder of models do not meet. Written whole at every step by an
atomic rename. A file that is damaged, old, or about another model is not used, and one sentence says why.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec.structs import replace

from engine.backends.modelfile import DEMO
from engine.config import EngineConfig
from engine.vram.devices import Device
from engine.vram.fingerprint import fingerprint
from engine.vram.runs import (
    VERSION,
    Results,
    Run,
    asked_of,
    fixed_knobs,
    holds,
    seconds_per_round,
    with_knobs,
)
from engine.vram.settings import usable_cores

_SIZES = ("n_ctx", "n_parallel", "kv_cells", "kv_ram_bytes", "cache_type_k", "cache_type_v")


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose results these are. Results of another identity say nothing here."""

    device: str
    build: str
    fingerprint: str

    @property
    def key(self) -> str:
        """8 hex digits for the file's name."""
        text = f"{self.device}\n{self.build}"
        return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


@dataclass(frozen=True, slots=True)
class Found:
    """`config` is what was asked with the best measured settings and `run` their measurement, or both None; `note` is one
    sentence for the reader: where it comes from, or why what is there was not used ("" = nothing is there)."""

    config: EngineConfig | None
    run: Run | None
    note: str


def identity(fingerprint: str, driven: Iterable[str] = ()) -> Identity:
    """This machine, this build of llama.cpp and a model. `driven`: names of the devices that the build can use beside the CPU."""
    device = ", ".join([f"{_processor()} ({usable_cores()} cores)", *driven])
    return Identity(device, _build(), fingerprint)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "CPU"
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "CPU")


def _build() -> str:
    """The version, and a hash of the libraries' names and sizes: CUDA, Vulkan and CPU builds differ in both."""
    spec = importlib.util.find_spec("llama_cpp")
    folders = [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []
    files = sorted(file for folder in folders for file in (folder / "lib").glob("*.so*"))
    text = "\n".join(f"{file.name} {file.stat().st_size}" for file in files)
    digest = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
    return f"llama-cpp-python {importlib.metadata.version('llama-cpp-python')}, libraries {digest}"


def places(config: EngineConfig, model: Path) -> list[Path]:
    """Folders for results, the best first: beside the model (not inside an installed package), then `tuned_dir`."""
    beside = [] if config.path == DEMO else [model.parent]
    return beside + ([Path(config.tuned_dir)] if config.tuned_dir else [])


def file_name(model: Path, whose: Identity) -> str:
    """The name of one identity's file."""
    return f"{model.name}.tuned-{whose.key}.json"


def read_results(file: Path, whose: Identity) -> tuple[Results | None, str]:
    """A file's results, or None and one sentence why they are not used ("" = there is no file)."""
    try:
        found = msgspec.json.decode(file.read_bytes(), type=Results)
    except FileNotFoundError:
        return None, ""
    except OSError as error:
        return None, f"{file} cannot be read ({error.strerror}): not used"
    except (msgspec.DecodeError, ValueError, RecursionError):
        return (
            None,
            f"{file} is damaged or of another version: not used; `hearth tune` measures anew",
        )
    if found.version != VERSION:
        return None, f"{file} is of version {found.version}: not used; `hearth tune` measures anew"
    if found.fingerprint != whose.fingerprint:
        return (
            None,
            f"{file} is about another model file: not used; `hearth tune` measures this one",
        )
    if (found.device, found.build) != (whose.device, whose.build):
        return None, f"{file} was measured elsewhere ({found.device}; {found.build}): not used"
    return found, ""


def write_results(file: Path, results: Results) -> None:
    """Replace the file; what was there stays until the new one is on the disk. Raises OSError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.new")
    with draft.open("wb") as out:
        out.write(msgspec.json.format(msgspec.json.encode(results), indent=1))
        out.flush()
        os.fsync(out.fileno())
    draft.replace(file)


def load_tuned(
    config: EngineConfig,
    model: Path,
    whose: Identity,
    room: Mapping[str, int],
) -> Found:
    """The fastest measured settings for what `config` asks. Never raises for what is in a file.

    `room`: bytes that may be used per device now, "RAM" and the names of the devices. What the person set (a number of
    threads, of layers, the types of the cache) stays as it is.
    """
    notes = []
    for folder in places(config, model):
        results, note = read_results(folder / file_name(model, whose), whose)
        if results is None:
            notes.append(note or _strangers(folder, model))
            continue
        run = _best(config, results, room)
        file = folder / file_name(model, whose)
        if run is None:
            notes.append(f"{file} has no run that fits these settings and this memory: not used")
            continue
        return Found(
            with_knobs(config, run.knobs), run, f"settings as measured by `hearth tune` ({file})"
        )
    return Found(None, None, next(filter(None, notes), ""))


def _measured_here(config: EngineConfig, model: Path, ram: Device, card: Device | None) -> Found:
    room = {device.name: device.capacity for device in (ram, card) if device is not None}
    whose = identity(fingerprint(model), [card.name] if card else [])
    return load_tuned(config, model, whose, room)


def measured_near(
    config: EngineConfig,
    smaller: EngineConfig | None,
    model: Path,
    ram: Device,
    card: Device | None,
) -> Found:
    """`load_tuned` for what was asked, else for the sizes of `smaller` (what fits instead; None = all of it fits).

    On this build and these devices of this machine, within what they have room for. Raises EngineConfigError for a file that
    is no whole model.
    """
    found = _measured_here(config, model, ram, card)
    if found.run is not None or smaller is None:
        return found
    fitting = _measured_here(_with_sizes_of(config, smaller), model, ram, card)
    return fitting if fitting.run is not None else found


def _with_sizes_of(config: EngineConfig, other: EngineConfig) -> EngineConfig:
    """The settings with another's sizes, which may be smaller than asked for: runs of the tuner are told apart by them."""
    return replace(config, **{field: getattr(other, field) for field in _SIZES})


def _strangers(folder: Path, model: Path) -> str:
    """A word about results for this model that are not ours."""
    try:
        others = sorted(folder.glob(f"{_escaped(model.name)}.tuned-*.json"))
    except OSError:
        return ""
    if not others:
        return ""
    return f"{others[0]} was measured on another device or build: not used; `hearth tune` measures here"


def _escaped(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def _best(config: EngineConfig, results: Results, room: Mapping[str, int]) -> Run | None:
    asked, fixed = asked_of(config), fixed_knobs(config)
    fitting = [
        run
        for run in results.runs
        if run.asked == asked
        and run.knobs.n_batch >= asked.n_parallel
        and all(getattr(run.knobs, key) == value for key, value in fixed.items())
        and holds(run, room, config.kv_ram_bytes)
    ]
    # Only runs of one depth can be compared: the deepest, which the newest plan was measured with.
    deepest = max((run.depth for run in fitting), default=0)
    return min(
        (run for run in fitting if run.depth == deepest), key=seconds_per_round, default=None
    )
