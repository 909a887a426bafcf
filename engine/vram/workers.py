"""Workers as the planner sees them: devices with memory, asked where they are free, read from the lease where they are used."""

from __future__ import annotations

from collections.abc import Sequence

from engine.rpc.endpoints import Endpoint, parse_endpoint
from engine.rpc.hello import LentDevice, WorkerAway, ask_worker
from engine.rpc.lease import holder_of
from engine.vram.devices import Device


def worker_devices(endpoints: Sequence[str], where: str, notes: list[str]) -> tuple[Device, ...]:
    """What the workers lend; sentences about those that are away or in use go to `notes`. A worker that an engine of this
    machine uses is not dialled. Raises EngineConfigError for what is no address.
    """
    found: list[Device] = []
    for text in endpoints:
        endpoint = parse_endpoint(text, where)
        holder = holder_of(endpoint)
        if holder is not None:
            notes.append(
                f"the RPC worker at {endpoint} is in use by models.{holder.model} (process {holder.pid}): "
                "planned with what it lent when it was free"
            )
            found += _as_devices(endpoint, holder.devices)
            continue
        try:
            found += _as_devices(endpoint, ask_worker(endpoint))
        except WorkerAway as error:
            notes.append(f"the RPC worker at {endpoint} is not planned with: {error}")
    return tuple(found)


def _as_devices(endpoint: Endpoint, lent: Sequence[LentDevice]) -> list[Device]:
    return [
        Device(f"RPC{index} at {endpoint}", "gpu", device.free, 0.0, True, "bandwidth not known")
        for index, device in enumerate(lent)
    ]
