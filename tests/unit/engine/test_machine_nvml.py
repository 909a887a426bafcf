"""NVIDIA cards at NVML's border: what is told is taken, what is not told stays open, and nothing there is no fault."""

from __future__ import annotations

import importlib
import os
import sys

import pytest
from structlog.testing import capture_logs

from engine.machine.nvml import REASONS, Nvml
from engine.machine.sample import ProcessMemory
from engine.machine.sampler import Sampler
from tests.support.nvmlfake import MIB, FakeCard, NVMLError, fake_pynvml

PID = 4711


def opened(monkeypatch: pytest.MonkeyPatch, *cards: FakeCard, old_names: bool = False) -> Nvml:
    monkeypatch.setitem(sys.modules, "pynvml", fake_pynvml(*cards, old_names=old_names))
    nvml = Nvml.open()
    assert nvml is not None
    return nvml


def test_a_card_with_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    card = FakeCard(used=9_000 * MIB, compute={PID: 8_200 * MIB, 9: 300 * MIB}, graphics={7: 50 * MIB})  # fmt: skip
    (found,) = opened(monkeypatch, card).cards([PID])
    assert found.name == "NVIDIA GeForce RTX 3060"
    assert (found.total, found.free, found.used) == (12_288 * MIB, 3_288 * MIB, 9_000 * MIB)
    assert found.engine_bytes == 8_200 * MIB
    assert (found.temperature_c, found.clock_mhz, found.memory_clock_mhz) == (61, 1807, 7300)
    assert (found.busy, found.power_w, found.throttled) == (0.93, 168.432, ())


@pytest.mark.parametrize("old_names", [False, True])
def test_heat_is_told_and_a_power_limit_is_none(
    monkeypatch: pytest.MonkeyPatch, old_names: bool
) -> None:
    idle_and_power_cap, heat = FakeCard(reasons=0x1 | 0x4), FakeCard(reasons=0x20 | 0x40 | 0x4)
    old_driver = FakeCard(reasons=0x40, unsupported=("nvmlDeviceGetCurrentClocksEventReasons",))
    cards = idle_and_power_cap, heat, old_driver
    found = opened(monkeypatch, *cards, old_names=old_names).cards([])
    assert found[0].throttled == ()
    assert found[1].throttled == ("heat (driver)", "heat (hardware)")
    assert found[2].throttled == ("heat (hardware)",)
    assert [card.index for card in found] == [0, 1, 2]


def test_what_is_not_supported_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """A laptop card: no power, no utilization, and names as old bindings give them."""
    card = FakeCard(
        name=b"NVIDIA GeForce MX450",
        unsupported=(
            "nvmlDeviceGetPowerUsage",
            "nvmlDeviceGetUtilizationRates",
            "nvmlDeviceGetTemperature",
            "nvmlDeviceGetClockInfo",
            "nvmlDeviceGetCurrentClocksEventReasons",
            "nvmlDeviceGetCurrentClocksThrottleReasons",
            "nvmlDeviceGetComputeRunningProcesses",
            "nvmlDeviceGetGraphicsRunningProcesses",
        ),
    )
    (found,) = opened(monkeypatch, card).cards([PID])
    assert found.name == "NVIDIA GeForce MX450"
    assert found.used == 1_024 * MIB
    told = (found.temperature_c, found.clock_mhz, found.busy, found.power_w, found.engine_bytes)
    assert told == (None,) * 5
    assert found.throttled == ()


def test_wsl_lists_the_process_without_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = opened(monkeypatch, FakeCard(compute={PID: None})).cards([PID])
    assert found.engine_bytes is None


def test_a_container_sees_other_process_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = opened(monkeypatch, FakeCard(compute={31_337: 8 * MIB})).cards([PID])
    assert found.engine_bytes is None


def test_each_engines_share_over_all_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = (
        FakeCard(compute={PID: 5 * MIB, 4712: 7 * MIB, 9: 8 * MIB}),
        FakeCard(compute={PID: 2 * MIB, 4713: None}),
    )
    nvml = opened(monkeypatch, *cards)
    found = nvml.cards([PID, 4712, 4713])
    assert nvml.by_process == {PID: 7 * MIB, 4712: 7 * MIB}
    assert [card.engine_bytes for card in found] == [12 * MIB, 2 * MIB]
    nvml.cards([])
    assert nvml.by_process == {}


def test_a_sample_brings_card_and_process_together(monkeypatch: pytest.MonkeyPatch) -> None:
    pid = os.getpid()
    monkeypatch.setitem(sys.modules, "pynvml", fake_pynvml(FakeCard(compute={pid: 5 * MIB})))
    uses_card = ProcessMemory(pid, rss=MIB, uses_card=True)
    monkeypatch.setattr("engine.machine.procfs.process_memory", lambda _: uses_card)
    sampler = Sampler()
    found = sampler.take({"main": pid})
    sampler.close()
    assert found.cards[0].engine_bytes == 5 * MIB
    assert found.engines["main"].card == 5 * MIB


def test_the_card_that_it_does_not_use(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = FakeCard(compute={PID: 5 * MIB}), FakeCard(compute={9: 8 * MIB})
    found = opened(monkeypatch, *cards).cards([PID])
    assert [card.engine_bytes for card in found] == [5 * MIB, 0]


def test_without_an_engine_on_cards_nothing_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = opened(monkeypatch, FakeCard(compute={9: 8 * MIB})).cards([])
    assert found.engine_bytes == 0


def test_no_library_and_no_driver_are_one_debug_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with capture_logs() as logs:
        assert Nvml.open() is None
        monkeypatch.setitem(sys.modules, "pynvml", fake_pynvml(init=NVMLError(9)))
        assert Nvml.open() is None
    assert [(one["log_level"], one["reason"]) for one in logs] == [
        ("debug", "nvidia-ml-py is not installed"),
        ("debug", "Driver Not Loaded"),
    ]


def test_a_card_that_is_lost_is_left_out_and_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    card = FakeCard()
    nvml = opened(monkeypatch, card)
    with capture_logs() as logs:
        card.lost = NVMLError(15)
        assert nvml.cards([]) == ()
        assert nvml.cards([]) == ()
        card.lost = None
        assert len(nvml.cards([])) == 1
        nvml.close()
    assert [one["event"] for one in logs] == ["nvml_lost"]
    assert logs[0]["reason"] == "GPU is lost"
    assert sys.modules["pynvml"].n_open == 0


def test_the_double_is_like_the_binding() -> None:
    """nvidia-ml-py is installed with Hearth: its names, its errors and their words."""
    binding = importlib.import_module("pynvml")
    double = fake_pynvml()
    names = {name for name in vars(double) if name.startswith(("nvml", "NVML"))}
    assert {name for name in names if not hasattr(binding, name)} == set()
    assert hasattr(binding, "nvmlDeviceGetCurrentClocksThrottleReasons")
    for constant in ("NVML_TEMPERATURE_GPU", "NVML_CLOCK_GRAPHICS", "NVML_CLOCK_MEM"):
        assert getattr(double, constant) == getattr(binding, constant)
    for number in (3, 4, 9, 12, 15, 18):
        error = binding.NVMLError(number)
        assert isinstance(error, binding.NVMLError)
        assert str(error) == str(NVMLError(number))
    assert binding.NVML_ERROR_NOT_SUPPORTED == 3
    reasons = {
        binding.nvmlClocksEventReasonSwThermalSlowdown: "heat (driver)",
        binding.nvmlClocksThrottleReasonHwThermalSlowdown: "heat (hardware)",
        binding.nvmlClocksThrottleReasonHwSlowdown: "hardware slowdown",
        binding.nvmlClocksThrottleReasonHwPowerBrakeSlowdown: "power supply",
    }
    assert reasons == REASONS
