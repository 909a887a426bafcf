"""What admins see of the machine in `/status`, in both languages, and that nobody else does."""

from __future__ import annotations

import msgspec

from engine.machine.alarms import Alarm, AlarmKind
from engine.machine.sample import ProcessMemory
from tests.support.samplekit import GIB, MIB, card, sample

ENGINE = ProcessMemory(42, rss=900 * MIB, peak_rss=3 * GIB, swap=70 * MIB)
CARDS = (
    card(temperature_c=61, clock_mhz=1807, shared_bytes=100 * MIB),
    card(name="old", engine_bytes=0),
)
SEEN = sample(5.0, swap_used=2 * GIB, engines={"main": ENGINE}, cards=CARDS)
ALARMS = (
    Alarm(AlarmKind.RAM_LOW, "", {"free": "300 MiB", "limit": "819 MiB"}),
    Alarm(AlarmKind.THROTTLED, "RTX 3060 0", {"reasons": "heat (driver)", "temperature": "88 °C"}),
)


async def seen_by_an_admin(world, tools, language: str) -> str:
    config = tools.make_config(access={"admins": ["feishu:ann"]}, chat={"language": language})
    world.service.reload(config)
    world.machine.latest, world.machine.alarms = SEEN, ALARMS
    stats = await world.engine.stats()

    async def lacking():
        return msgspec.structs.replace(stats, lacks="without the RPC worker at a:1 since 12:00")

    world.engine.stats = lacking
    return await world.answer(await world.say("/status"))


async def test_an_admin_sees_the_machine_and_what_is_wrong(world, tools):
    status = await seen_by_an_admin(world, tools, "en")
    for line in (
        "For admins: without the RPC worker at a:1 since 12:00",
        "⚠ Only 300 MiB of memory are available (margin 819 MiB)",
        "⚠ RTX 3060 0 lowers its clocks: heat (driver) (88 °C)",
        "Memory: 8.0 GiB of 16.0 GiB available, 2.0 GiB of swap in use",
        "Engine: 900 MiB (peak 3.0 GiB), 70 MiB of it in swap",
        "RTX 3060: 10.0 GiB of 12.0 GiB in use, 9.0 GiB by the engine, 100 MiB of shared memory, 61 °C, 1807 MHz",
        "old: 10.0 GiB of 12.0 GiB in use",
    ):
        assert line in status


async def test_in_chinese(world, tools):
    status = await seen_by_an_admin(world, tools, "zh")
    assert "⚠ 可用内存只剩 300 MiB" in status
    assert (
        "RTX 3060：显存已用 10.0 GiB / 12.0 GiB，其中引擎 9.0 GiB，共享内存 100 MiB，61 °C，1807 MHz"
        in status
    )


async def test_nobody_else_sees_it(world):
    world.machine.latest, world.machine.alarms = SEEN, ALARMS
    assert "GiB" not in await world.answer(await world.say("/status"))


async def test_before_the_first_look_there_is_nothing_to_say(world, tools):
    world.service.reload(tools.make_config(access={"admins": ["feishu:ann"]}))
    assert "Memory:" not in await world.answer(await world.say("/status"))
