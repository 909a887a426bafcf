"""The engines' own counters in Prometheus' words. Fed by `/metrics` just before it is answered; asks nothing itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from engine.types import EngineState, EngineStats

_GAUGES = {
    "n_running": ("hearth_engine_running", "Replies being generated."),
    "n_waiting": ("hearth_engine_waiting", "Requests in line inside the engine."),
    "n_sequences_kept": ("hearth_engine_sequences_kept", "Conversations whose KV is kept."),
    "kv_cells_used": ("hearth_engine_kv_cells_used", "KV cells in use, in tokens."),
    "kv_cells_total": ("hearth_engine_kv_cells", "KV cells in all, in tokens."),
    "kv_ram_bytes": ("hearth_engine_kv_ram_bytes", "KV of idle conversations in RAM."),
    "kv_disk_bytes": ("hearth_engine_kv_disk_bytes", "KV of idle conversations on disk."),
    "rss_bytes": ("hearth_engine_rss_bytes", "Resident memory of the engine child."),
}
_COUNTERS = {
    "n_restarts": ("hearth_engine_restarts", "Times the child was started again."),
    "decoded_prompt_tokens_total": (
        "engine_decoded_prompt_tokens",
        "Prompt tokens that were really put into llama_decode (since the child started).",
    ),
    "decoded_generated_tokens_total": ("engine_decoded_generated_tokens", "Generated tokens."),
    "drafted_tokens_total": (
        "engine_drafted_tokens",
        "Tokens of replies that were guessed from earlier text and computed.",
    ),
    "accepted_tokens_total": (
        "engine_accepted_tokens",
        "Guessed tokens that were what the model chose (generated tokens, too).",
    ),
    "kv_saved_tokens_total": ("engine_kv_saved_tokens", "Tokens whose KV was stored."),
    "kv_saved_bytes_total": ("engine_kv_saved_bytes", "Bytes of KV that were stored."),
    "kv_restored_tokens_total": (
        "engine_kv_restored_tokens",
        "Tokens whose KV came back from RAM or disk instead of being computed.",
    ),
    "steps_total": ("engine_steps", "Decode steps."),
    "step_decode_s": ("engine_step_decode_seconds", "Time inside llama_decode."),
    "step_python_s": ("engine_step_python_seconds", "Time of a step outside llama_decode."),
}


class EngineMetrics(Collector):
    """Holds the newest figures of every model; one owner, the application."""

    def __init__(self) -> None:
        self._stats: dict[str, EngineStats] = {}

    def update(self, stats: Mapping[str, EngineStats]) -> None:
        """Take the newest figures."""
        self._stats = dict(stats)

    def collect(self) -> Iterator[Metric]:
        """One family per figure, labelled by model."""
        up = GaugeMetricFamily(
            "hearth_engine_up", "1 while requests are accepted.", labels=["model"]
        )
        for name, stats in self._stats.items():
            up.add_metric([name], float(stats.state is EngineState.READY))
        yield up
        for field, (metric, text) in _GAUGES.items():
            gauge = GaugeMetricFamily(metric, text, labels=["model"])
            for name, stats in self._stats.items():
                gauge.add_metric([name], float(getattr(stats, field)))
            yield gauge
        for field, (metric, text) in _COUNTERS.items():
            counter = CounterMetricFamily(metric, text, labels=["model"])
            for name, stats in self._stats.items():
                counter.add_metric([name], float(getattr(stats, field)))
            yield counter
