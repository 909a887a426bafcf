"""The service's counters, in a registry that is handed in (there is no global one)."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0, 300.0)


class ServiceMetrics:
    """Written by the inbox, the dispatcher and the turns; read by `/metrics`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.accepted = Counter(
            "hearth_events_total", "Verified events by what became of them.", ["what"],
            registry=registry,
        )  # fmt: skip
        self.turns = Counter(
            "hearth_turns_total", "Finished turns by kind and outcome.", ["kind", "outcome"],
            registry=registry,
        )  # fmt: skip
        self.active = Gauge("hearth_turns_active", "Turns held by this process.", registry=registry)
        self.first_text_s = Histogram(
            "hearth_first_text_seconds", "From the question being stored to its first visible text.",
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self.delivery_s = Histogram(
            "hearth_delivery_seconds", "From the last token to the acknowledged final message.",
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self.updates = Histogram(
            "hearth_updates_per_reply", "Calls that showed a growing reply.",
            buckets=(0, 1, 2, 4, 8, 16, 32, 64, 128, 256), registry=registry,
        )  # fmt: skip
        self.show_errors = Counter(
            "hearth_show_errors_total", "Failed attempts to show a reply, by class of error.", ["error"],
            registry=registry,
        )  # fmt: skip
        self.ratings = Counter(
            "hearth_ratings_total", "Answers that people judged, by verdict.", ["verdict"], registry=registry
        )  # fmt: skip
        self.engine_retries = Counter(
            "hearth_engine_retries_total", "Requests sent to the engine again.", registry=registry
        )
