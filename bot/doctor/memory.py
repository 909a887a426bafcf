"""RAM: what there is, what limits it, what swaps, and whether the plan fits into it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from bot.app import store_url
from bot.config import Config
from bot.config_engine import engine_settings
from bot.doctor.build import may_have_cards
from bot.doctor.findings import Finding, error, ok, warning
from bot.doctor.patient import Patient
from bot.errors import HearthError
from bot.store.examine import service_pid
from engine.config import EngineConfig
from engine.errors import EngineError
from engine.vram.chooser import NothingFits
from engine.vram.planning import Plan, Wishes, make_plan

_GIB: Final = 2**30
_SWAP_NOTICED: Final = 64 * 2**20  # what idle pages take anyway
_UNLIMITED: Final = 2**60  # cgroup v1 writes a number near 2^63 for "no limit"


@dataclass(frozen=True, slots=True)
class Ram:
    """Bytes. `limit`: what this process's control group may use (0 = no limit), `used_of_limit` what it does."""

    total: int
    available: int
    swap_used: int
    swap_total: int
    limit: int = 0
    used_of_limit: int = 0

    @property
    def usable(self) -> int:
        """What can still be taken without swapping."""
        if not self.limit:
            return self.available
        return min(self.available, max(0, self.limit - self.used_of_limit))


def read_ram(patient: Patient) -> Ram:
    """From /proc/meminfo and the control group's files, of either version."""
    fields = {
        name: int(kib) * 1024
        for name, kib in re.findall(
            r"^(\w+):\s+(\d+) kB", patient.read("proc/meminfo"), re.MULTILINE
        )
    }
    limit, used = _limit(patient)
    return Ram(
        fields.get("MemTotal", 0),
        fields.get("MemAvailable", 0),
        fields.get("SwapTotal", 0) - fields.get("SwapFree", 0),
        fields.get("SwapTotal", 0),
        limit if limit < fields.get("MemTotal", 0) else 0,
        used,
    )


def _limit(patient: Patient) -> tuple[int, int]:
    """The tightest limit of our group and those above it, and what is used of it; file cache does not count."""
    tightest = (_UNLIMITED, 0)
    for line in patient.read("proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        folders = [PurePosixPath(group), *PurePosixPath(group).parents]
        if controllers and "memory" not in controllers.split(","):
            continue
        base, names = ("sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file"))
        if controllers:
            base, names = (
                "sys/fs/cgroup/memory",
                ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
            )
        for folder in folders:
            where = f"{base}/{str(folder).lstrip('/')}"
            limit = patient.read(f"{where}/{names[0]}").strip()
            if not limit.isdigit() or int(limit) >= tightest[0]:
                continue
            usage = patient.read(f"{where}/{names[1]}").strip()
            cache = re.search(
                rf"^{names[2]} (\d+)", patient.read(f"{where}/memory.stat"), re.MULTILINE
            )
            used = int(usage or 0) - (int(cache.group(1)) if cache else 0)
            tightest = (int(limit), max(0, used))
    return tightest


def look_at_ram(patient: Patient) -> Iterator[Finding]:
    """What there is now."""
    ram = read_ram(patient)
    if not ram.total:
        yield warning("/proc/meminfo cannot be read", "", "mount /proc")
        return
    yield ok(f"{ram.usable / _GIB:.1f} of {ram.total / _GIB:.1f} GiB RAM are free")
    if ram.limit:
        yield ok(f"its control group (container, systemd) may use {ram.limit / _GIB:.1f} GiB of it")
    if ram.swap_used > _SWAP_NOTICED:
        yield warning(
            f"{ram.swap_used / _GIB:.1f} of {ram.swap_total / _GIB:.1f} GiB swap are in use: replies come in jerks",
            "RAM",
            "more layers on the card, a smaller n_batch or another quantization; close other programs",
        )
    if patient.read("proc/sys/vm/overcommit_memory").strip() == "2":
        yield warning(
            "the kernel refuses memory that is only promised (vm.overcommit_memory = 2)",
            "RAM",
            "sysctl vm.overcommit_memory=0, or use_mmap = true",
        )


def look_at_plan(patient: Patient) -> Iterator[Finding]:
    """Whether every local model with its settings has room, and all of them together."""
    config = patient.config
    if pid := service_pid(store_url(config)):
        yield ok(
            f"the plan is not checked while the service runs (process {pid}): memory is its own"
        )
        return
    needed: dict[str, int] = {}
    ram = read_ram(patient)
    may_have_card = may_have_cards(patient)
    for name, settings in _local_models(config).items():
        try:
            # Where there is no card the arithmetic alone tells the same, without two more children.
            ask = may_have_card or bool(settings.rpc)
            plan = make_plan(settings, Wishes(ram=ram.usable, ask_llama=ask))
        except (EngineError, HearthError):
            continue  # the check of the model file says why
        needed[name] = plan.ledger.ram.used
        yield from judge_plan(name, plan)
    if len(needed) > 1 and sum(needed.values()) > ram.usable:
        yield error(
            f"all models together need {sum(needed.values()) / _GIB:.1f} GiB RAM, and {ram.usable / _GIB:.1f} are free",
            "models",
            "fewer or smaller models, smaller kv_ram or n_ctx",
        )


def _local_models(config: Config) -> dict[str, EngineConfig]:
    found = {name: engine_settings(name, model, config) for name, model in config.models.items()}
    return {
        name: settings
        for name, settings in found.items()
        if isinstance(settings, EngineConfig) and settings.backend == "llama.cpp"
    }


def judge_plan(name: str, plan: Plan) -> Iterator[Finding]:
    if isinstance(plan.result, NothingFits):
        nearest = plan.result.nearest
        cure = f"set {nearest[0][0]}" if nearest else "a smaller model or quantization"
        yield error(plan.result.why, f"models.{name}", f"{cure}; see hearth plan {name}")
        return
    ledger, config = plan.ledger, plan.result.config
    text = f"{name} takes {ledger.ram.used / _GIB:.1f} GiB RAM"
    if ledger.card is not None:
        card = ledger.card
        text += f" and {card.used / _GIB:.1f} of {card.device.capacity / _GIB:.1f} GiB of {card.device.name}"
        text += f" (n_gpu_layers = {config.n_gpu_layers}, n_cpu_moe = {config.n_cpu_moe})"
    yield ok(text)
    if plan.result.given_up:
        yield warning(
            f"as asked it does not fit; the start would take {', '.join(plan.result.given_up)}",
            f"models.{name}",
            f"free some memory, or see hearth plan {name} for other settings",
        )
    elif _takes_more(plan, config):
        yield warning(
            f'with vram = "off" n_gpu_layers = {plan.config.n_gpu_layers} stands as it is, which is more than fits',
            f"models.{name}",
            f'set n_gpu_layers = {config.n_gpu_layers}, n_cpu_moe = {config.n_cpu_moe}, or vram = "auto"',
        )


def _takes_more(plan: Plan, fitting: EngineConfig) -> bool:
    """Whether settings that no start would change put more on the card than fits."""
    if plan.config.is_fitted or plan.ledger.card is None:
        return False
    everything = plan.model.n_layer + 1
    wanted = plan.config.n_gpu_layers
    wanted = everything if wanted < 0 else min(wanted, everything)
    if wanted != fitting.n_gpu_layers:
        return wanted > fitting.n_gpu_layers
    return plan.config.n_cpu_moe < fitting.n_cpu_moe
