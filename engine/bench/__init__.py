"""The benchmark behind `hearth bench`: `run` plans and measures, `probe` asks one engine, `counters` what it really did,
`report` shows what was found."""

from engine.bench.probe import BenchFailed, BenchPlan
from engine.bench.report import BenchReport
from engine.bench.run import connected, counters_at, run, run_with_progress, server_at

__all__ = [
    "BenchFailed",
    "BenchPlan",
    "BenchReport",
    "connected",
    "counters_at",
    "run",
    "run_with_progress",
    "server_at",
]
