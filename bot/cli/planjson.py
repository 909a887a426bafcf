"""`hearth plan --json`: what the table says, for scripts."""

from __future__ import annotations

from typing import Any

import msgspec

from engine.vram.chooser import Choice, NothingFits
from engine.vram.ledger import DeviceLedger
from engine.vram.planning import Plan, exact, measured
from engine.vram.tuned import Found


def to_json(plan: Plan) -> dict[str, Any]:
    """The same facts as the table's, in bytes."""
    ledger, result = exact(plan), plan.result
    fits = isinstance(result, Choice)
    config = result.config if isinstance(result, Choice) else plan.config
    return {
        "model": str(plan.path),
        "architecture": plan.model.shape.architecture,
        "layers": plan.model.n_layer,
        "weights": plan.model.head.weight_bytes,
        "read_per_token": plan.model.active_bytes,
        "idle_on_disk": plan.config.kv_disk_bytes,
        "fits": fits,
        "estimate": plan.is_estimate,
        "exact": ledger.is_exact,
        "arithmetic_error": plan.error,
        "n_gpu_layers": ledger.placement.n_gpu_layers,
        "n_cpu_moe": ledger.placement.n_cpu_moe,
        "n_parallel": config.n_parallel,
        "cache_type_k": config.cache_type_k,
        "cache_type_v": config.cache_type_v,
        "kv_on_card": config.kv_on_card,
        "window": ledger.settings.window,
        "kv_cells": ledger.settings.n_cells,
        "devices": [_device_json(account) for account in ledger.devices],
        "tokens_per_second": {"empty": ledger.bound(), "full": ledger.bound(full=True)},
        "why": result.why,
        "given_up": list(result.given_up) if isinstance(result, Choice) else [],
        "knobs": [
            {"change": k.change, "bytes": k.n_bytes, "tokens_per_second": k.bound, "fits": k.fits}
            for k in result.knobs
        ]
        if isinstance(result, Choice)
        else [],
        "nearest": [_nearest_json(*one) for one in result.nearest] if isinstance(result, NothingFits) else [],
        "measured": _measured_json(measured(plan)),
        "notes": list(plan.notes),
    }  # fmt: skip


def _nearest_json(change: str, choice: Choice) -> dict[str, Any]:
    return {
        "change": change,
        "n_gpu_layers": choice.config.n_gpu_layers if choice.ledger.card else 0,
        "n_cpu_moe": choice.config.n_cpu_moe,
        "tokens_per_second": choice.ledger.bound(),
    }


def _measured_json(found: Found) -> dict[str, Any]:
    """`run` is null where nothing is measured or used, `note` says why."""
    return {"run": msgspec.to_builtins(found.run), "note": found.note}


def _device_json(account: DeviceLedger) -> dict[str, Any]:
    return {
        "name": account.device.name,
        "capacity": account.device.capacity,
        "used": account.used,
        "items": account.items,
        "read_per_token": account.read_bytes,
        "bandwidth": account.device.bandwidth,
        "driven": account.device.is_driven,
    }
