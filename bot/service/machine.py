"""This machine in the words of `/status`, for admins: memory, the engine's share of it, cards, and what is wrong."""

from __future__ import annotations

from bot.domain.catalogue import Language, say
from engine.machine.sample import Card, ProcessMemory, Sample
from engine.machine.watch import MachineWatch


def machine_lines(language: Language, watch: MachineWatch, model: str) -> list[str]:
    """One line each, warnings first; none before the first sample."""
    sample = watch.latest
    if sample is None:
        return []
    lines = [
        say(language, f"machine.warning.{alarm.kind.value}", about=alarm.about, **alarm.values)
        for alarm in watch.alarms
    ]
    lines.append(_memory(language, sample))
    engine = sample.engines.get(model)
    if engine is not None:
        lines.append(_engine(language, engine))
    return [*lines, *(_card(language, card) for card in sample.cards)]


def _memory(language: Language, sample: Sample) -> str:
    return say(
        language,
        "machine.memory",
        free=_size(sample.ram_available),
        total=_size(sample.ram_total),
        swap=_size(sample.swap_used),
    )


def _engine(language: Language, engine: ProcessMemory) -> str:
    return say(
        language,
        "machine.engine",
        rss=_size(engine.rss),
        peak=_size(engine.peak_rss),
        swap=_size(engine.swap),
    )


def _card(language: Language, card: Card) -> str:
    details = []
    if card.engine_bytes:
        details.append(say(language, "machine.detail.engine", size=_size(card.engine_bytes)))
    if card.shared_bytes:
        details.append(say(language, "machine.detail.shared", size=_size(card.shared_bytes)))
    if card.temperature_c is not None:
        details.append(say(language, "machine.detail.temperature", degrees=card.temperature_c))
    if card.clock_mhz is not None:
        details.append(say(language, "machine.detail.clock", mhz=card.clock_mhz))
    return say(
        language,
        "machine.card",
        card=card.name,
        used=_size(card.used),
        total=_size(card.total),
        details="".join(details),
    )


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:.1f} GiB" if n_bytes >= 2**30 else f"{n_bytes / 2**20:.0f} MiB"
