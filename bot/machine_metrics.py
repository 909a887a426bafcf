"""The machine's memory and cards in Prometheus' words, from the watch's newest sample. Asks nothing itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from engine.machine.alarms import AlarmKind
from engine.machine.sample import Card, ProcessMemory, Sample
from engine.machine.watch import MachineWatch

_Read = Callable[[Card], float | None]
_MACHINE: dict[str, tuple[str, Callable[[Sample], float]]] = {
    "hearth_machine_ram_bytes": ("Memory of the machine.", lambda s: s.ram_total),
    "hearth_machine_ram_available_bytes": (
        "Memory that can be had without swapping (a container's limit counts).",
        lambda s: s.ram_available,
    ),
    "hearth_machine_swap_bytes": ("Swap in all.", lambda s: s.swap_total),
    "hearth_machine_swap_used_bytes": ("Swap in use, by anybody.", lambda s: s.swap_used),
}
_CARD: dict[str, tuple[str, _Read]] = {
    "hearth_gpu_memory_bytes": ("Dedicated memory of the card.", lambda c: c.total or None),
    "hearth_gpu_memory_used_bytes": ("Dedicated memory in use, by anybody.", lambda c: c.used),
    "hearth_gpu_shared_memory_used_bytes": (
        "System memory that the driver uses as the card's, by anybody.",
        lambda c: c.shared_bytes,
    ),
    "hearth_gpu_engine_memory_bytes": (
        "Memory that Hearth's engines have on the card.",
        lambda c: c.engine_bytes,
    ),
    "hearth_gpu_temperature_celsius": ("Temperature of the card.", lambda c: c.temperature_c),
    "hearth_gpu_busy_ratio": ("Part of the time in which the card worked.", lambda c: c.busy),
    "hearth_gpu_power_watts": ("Power drawn by the card.", lambda c: c.power_w),
    "hearth_gpu_clock_hertz": ("Clock of the card.", lambda c: _hertz(c.clock_mhz)),
    "hearth_gpu_memory_clock_hertz": (
        "Clock of the card's memory.",
        lambda c: _hertz(c.memory_clock_mhz),
    ),
    "hearth_gpu_throttled": (
        "1 while the card lowers its clocks for heat or a fault.",
        lambda c: float(bool(c.throttled)),
    ),
}
_ENGINE: dict[str, tuple[str, Callable[[ProcessMemory], float | None]]] = {
    "hearth_engine_peak_rss_bytes": (
        "Largest resident memory of the engine child so far.",
        lambda p: p.peak_rss,
    ),
    "hearth_engine_swap_bytes": ("Memory of the engine child in swap.", lambda p: p.swap),
    "hearth_engine_gpu_memory_bytes": (
        "Memory of the engine child on cards, where the driver tells.",
        lambda p: p.card,
    ),
    "hearth_engine_gpu_shared_bytes": (
        "System memory that cards use for the engine child, where the driver tells.",
        lambda p: p.shared,
    ),
}


def _hertz(mhz: int | None) -> float | None:
    return None if mhz is None else mhz * 1e6


class MachineMetrics(Collector):
    """Reads the watch; owner: the application. What a machine does not tell is left out."""

    def __init__(self, watch: MachineWatch) -> None:
        self._watch = watch

    def collect(self) -> Iterator[Metric]:
        """Nothing before the first sample."""
        sample = self._watch.latest
        if sample is None:
            return
        for metric, (text, of_machine) in _MACHINE.items():
            yield GaugeMetricFamily(metric, text, value=float(of_machine(sample)))
        for metric, (text, of_card) in _CARD.items():
            rows = (([str(c.index), c.name], of_card(c)) for c in sample.cards)
            yield from _family(metric, text, ["gpu", "name"], rows)
        for metric, (text, of_engine) in _ENGINE.items():
            rows = (([name], of_engine(p)) for name, p in sample.engines.items())
            yield from _family(metric, text, ["model"], rows)
        alarms = GaugeMetricFamily(
            "hearth_machine_warnings", "Warnings that hold now, by kind.", labels=["what"]
        )
        for kind in AlarmKind:
            alarms.add_metric([kind.value], sum(a.kind is kind for a in self._watch.alarms))
        yield alarms


def _family(
    metric: str, text: str, labels: list[str], rows: Iterable[tuple[list[str], float | None]]
) -> Iterator[GaugeMetricFamily]:
    """A family, if there is anything to tell."""
    family = GaugeMetricFamily(metric, text, labels=labels)
    for values, value in rows:
        if value is not None:
            family.add_metric(values, float(value))
    if family.samples:
        yield family
