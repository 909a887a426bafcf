"""The machine in `/metrics`: what is known, under fixed names; what is not told is not there."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from bot.cli.report import findings
from bot.config import parse_config
from bot.errors import ConfigError
from bot.machine_metrics import MachineMetrics
from engine.machine.alarms import Alarm, AlarmKind
from engine.machine.margins import Margins
from engine.machine.sample import ProcessMemory
from tests.support.samplekit import GIB, MIB, card, sample


def told(latest: Any, *alarms: Alarm) -> dict[str, float]:
    watch: Any = types.SimpleNamespace(latest=latest, alarms=alarms)
    registry = CollectorRegistry()
    registry.register(MachineMetrics(watch))
    lines = generate_latest(registry).decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


def test_everything_that_is_known() -> None:
    full = card(
        temperature_c=61, clock_mhz=1807, memory_clock_mhz=7300, busy=0.93, power_w=168.4,
        throttled=("heat (driver)",), shared_bytes=5 * MIB,
    )  # fmt: skip
    engines = {"main": ProcessMemory(42, rss=MIB, peak_rss=3 * GIB, swap=MIB, card=9 * GIB)}
    figures = told(
        sample(1.0, cards=(full,), engines=engines, swap_used=GIB), Alarm(AlarmKind.RAM_LOW)
    )
    gpu = '{gpu="0",name="RTX 3060"}'
    assert figures == {
        "hearth_machine_ram_bytes": 16 * GIB,
        "hearth_machine_ram_available_bytes": 8 * GIB,
        "hearth_machine_swap_bytes": 4 * GIB,
        "hearth_machine_swap_used_bytes": GIB,
        f"hearth_gpu_memory_bytes{gpu}": 12 * GIB,
        f"hearth_gpu_memory_used_bytes{gpu}": 10 * GIB,
        f"hearth_gpu_shared_memory_used_bytes{gpu}": 5 * MIB,
        f"hearth_gpu_engine_memory_bytes{gpu}": 9 * GIB,
        f"hearth_gpu_temperature_celsius{gpu}": 61,
        f"hearth_gpu_busy_ratio{gpu}": 0.93,
        f"hearth_gpu_power_watts{gpu}": 168.4,
        f"hearth_gpu_clock_hertz{gpu}": 1_807_000_000,
        f"hearth_gpu_memory_clock_hertz{gpu}": 7_300_000_000,
        f"hearth_gpu_throttled{gpu}": 1,
        'hearth_engine_peak_rss_bytes{model="main"}': 3 * GIB,
        'hearth_engine_swap_bytes{model="main"}': MIB,
        'hearth_engine_gpu_memory_bytes{model="main"}': 9 * GIB,
        **{
            f'hearth_machine_warnings{{what="{kind.value}"}}': float(kind is AlarmKind.RAM_LOW)
            for kind in AlarmKind
        },
    }


def test_what_is_not_told_is_not_there() -> None:
    bare = card(engine_bytes=None)
    names = {name.partition("{")[0] for name in told(sample(1.0, cards=(bare,), engines={}))}
    assert "hearth_gpu_memory_used_bytes" in names
    assert not any("temperature" in name or "engine" in name for name in names)
    assert told(None) == {}


def test_the_table_in_the_config() -> None:
    def watch(**fields: object) -> Margins:
        return parse_config({"watch": fields}, Path()).watch.margins

    assert watch() == Margins()
    assert watch(ram_margin="2GiB", vram_margin="300 MiB", swap="1MiB", hold_s=60, give_back=False) == Margins(
        ram=2 * GIB, vram=300 * MIB, swap=MIB, hold_s=60.0, gives_back=False
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"watch\.ram_margin: .*write a size"):
        watch(ram_margin="much")
    with pytest.raises(
        ConfigError, match=r"watch\.hold: this key is not known; did you mean hold_s"
    ):
        watch(hold=3)
    with pytest.raises(
        ConfigError, match=r"models\.main\.rpc.*is not the address of an RPC worker"
    ):
        parse_config({"models": {"main": {"rpc": ["::1"]}}}, Path())


def test_a_worker_on_the_open_network_is_warned_of() -> None:
    models = {"main": {"rpc": ["127.0.0.1", "192.168.1.5:1", "gpu-box", "8.8.8.8:50052"]}}
    config = parse_config({"models": models}, Path())
    (found,) = [one for one in findings(config) if "rpc" in one.where]
    assert (found.level, found.where) == ("warning", "models.main.rpc")
    assert found.text.startswith("8.8.8.8:50052 is on the open network")
