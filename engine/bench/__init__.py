"""The benchmark behind `hearth bench`: `run` plans and measures, `probe` asks one engine, `report` shows what was found."""

from engine.bench.probe import BenchFailed, BenchPlan
from engine.bench.report import BenchReport
from engine.bench.run import connected, run, run_with_progress, server_at

__all__ = [
    "BenchFailed",
    "BenchPlan",
    "BenchReport",
    "connected",
    "run",
    "run_with_progress",
    "server_at",
]
