"""The chart of `hearth tune` as a PNG: one row for each setting, the fastest first; speed, memory and perplexity side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from PIL import Image, ImageDraw, ImageFont

from bot.cli.tuneview import Outcome, knobs_name, perplexity_of, verdict
from engine.vram.devices import GIB
from engine.vram.runs import HELD, MARGIN, RAM, Run, seconds_per_round

_WIDTH: Final = 1480
_MARGIN: Final = 28
_LABEL: Final = 350
_ROW: Final = 40
_TOP: Final = 132
_FOOT: Final = 76
_GAP: Final = 30
_MOST_ROWS: Final = 40

_PAPER, _INK, _FAINT, _GRID = "#ffffff", "#1f2430", "#7a8190", "#e6e8ee"
_KEPT, _PROMPT, _REPLY, _RAM, _CARD = "#eef7ee", "#4c78a8", "#3a9d5d", "#b8860b", "#8e6bb0"
_FAILED: Final = "#b03a2e"


@dataclass(frozen=True, slots=True)
class _Bar:
    """One bar of a row: what it shows, its colour, and how the number is written."""

    value: float
    colour: str
    text: str


@dataclass(frozen=True, slots=True)
class _Panel:
    """A column of the chart. `limit` is a value that must not be passed (0 = none)."""

    title: str
    bars: Callable[[Run], list[_Bar]]
    share: float
    limit: float = 0.0


def draw_chart(outcome: Outcome, path: Path) -> None:
    """Write the PNG. Raises OSError."""
    runs = sorted(outcome.report.runs, key=seconds_per_round)[:_MOST_ROWS]
    height = _TOP + _ROW * max(1, len(runs)) + _FOOT
    image = Image.new("RGB", (_WIDTH, height), _PAPER)
    _Chart(ImageDraw.Draw(image), outcome, runs).draw(height)
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, "PNG", optimize=True)


class _Chart:
    """One drawing. Coordinates are pixels from the top left."""

    def __init__(self, draw: ImageDraw.ImageDraw, outcome: Outcome, runs: list[Run]) -> None:
        self._draw = draw
        self._outcome = outcome
        self._runs = runs
        self._fonts = {size: ImageFont.load_default(size) for size in (14, 16, 18, 26)}

    def draw(self, height: int) -> None:
        """Everything."""
        self._head()
        for row, run in enumerate(self._runs):
            self._row_label(row, run)
        left = float(_MARGIN + _LABEL)
        width = _WIDTH - _MARGIN - left
        for panel in self._panels():
            self._panel(panel, left, panel.share * width - _GAP)
            left += panel.share * width
        self._foot(height)

    def _panels(self) -> list[_Panel]:
        cards = dict.fromkeys(name for run in self._runs for name in run.peak if name != RAM)
        held = [run for run in self._runs if run.outcome == HELD]
        limits = [run.room[name] - MARGIN for run in held for name in run.room if name in cards]
        memory = "memory, GiB: RAM" + ("".join(f" / {name.split(' ')[0]}" for name in cards))
        return [
            _Panel("prompt, tokens/s", lambda run: [_plain(run.prompt_tps, _PROMPT)], 0.28),
            _Panel("reply, tokens/s, all", lambda run: [_plain(run.generation_tps, _REPLY)], 0.28),
            _Panel(memory, _memory, 0.3, min(limits, default=0) / GIB),
            _Panel("perplexity", self._perplexity, 0.14),
        ]

    def _perplexity(self, run: Run) -> list[_Bar]:
        found = perplexity_of(run, self._outcome.report)
        return [_Bar(0.0, _INK, f"{found:.3f}" if found else "-")]

    def _head(self) -> None:
        plan = self._outcome.plan
        self._text(_MARGIN, 24, plan.path.name, 26)
        config = plan.config
        self._text(
            _MARGIN,
            60,
            f"{config.n_parallel} x {config.n_ctx} tokens on {plan.whose.device}",
            16,
            _FAINT,
        )

    def _row_label(self, row: int, run: Run) -> None:
        top = _TOP + row * _ROW
        if run == self._outcome.report.best:
            self._draw.rectangle((_MARGIN - 10, top, _WIDTH - _MARGIN + 10, top + _ROW - 2), _KEPT)
        name = knobs_name(run.knobs, self._outcome.plan.space.start)
        word = verdict(run, self._outcome)
        is_kept = word == "kept"
        self._text(_MARGIN, top + 5, f"{name}   KEPT" if is_kept else name, 16)
        if word and not is_kept:
            self._text(_MARGIN, top + 22, self._cut(word, _LABEL - 20), 14, _FAINT)

    def _panel(self, panel: _Panel, left: float, width: float) -> None:
        self._text(left, _TOP - 30, panel.title, 16)
        rows = [(row, run) for row, run in enumerate(self._runs) if run.outcome == HELD]
        values = [bar.value for _, run in rows for bar in panel.bars(run)]
        highest = max([*values, panel.limit]) or 1.0
        room = width - 64  # for the number behind the longest bar
        if any(values):
            self._draw.line((left, _TOP - 6, left, _TOP + len(self._runs) * _ROW), _GRID, 2)
        if panel.limit:
            x = left + room * panel.limit / highest
            self._draw.line((x, _TOP - 6, x, _TOP + len(self._runs) * _ROW), _FAILED, 2)
        for row, run in rows:
            bars = panel.bars(run)
            thick = (_ROW - 14) / len(bars)
            for i, bar in enumerate(bars):
                top = _TOP + row * _ROW + 6 + i * thick
                end = left + room * bar.value / highest
                if bar.value:
                    self._draw.rectangle((left, top, end, top + thick - 2), bar.colour)
                self._text(end + 8, top + thick / 2 - 10, bar.text, 16 if len(bars) == 1 else 14)

    def _foot(self, height: int) -> None:
        config = self._outcome.plan.config
        depth = max((run.depth for run in self._runs), default=0)
        order = f"Order: seconds until {config.n_parallel} people who ask at once are answered."
        where = f"Measured behind {depth} tokens in every conversation."
        quality = "Perplexity of a fixed text (less is better): what the KV cache's type costs."
        lines = (f"{order} {where}", f"{quality} Red line: memory that may be used.")
        for i, line in enumerate(lines):
            self._text(_MARGIN, height - _FOOT + 22 + 20 * i, line, 14, _FAINT)

    def _text(self, x: float, y: float, text: str, size: int, colour: str = _INK) -> None:
        self._draw.text((x, y), text, fill=colour, font=self._fonts[size])

    def _cut(self, text: str, width: float) -> str:
        while self._draw.textlength(text, font=self._fonts[14]) > width:
            text = text[:-4].rstrip() + "..."
        return text


def _plain(value: float, colour: str) -> _Bar:
    return _Bar(value, colour, f"{value:.1f}" if value < 1000 else f"{value:.0f}")


def _memory(run: Run) -> list[_Bar]:
    """RAM, then the cards."""
    return [
        _Bar(n_bytes / GIB, _RAM if name == RAM else _CARD, f"{n_bytes / GIB:.2f}")
        for name, n_bytes in sorted(run.peak.items(), key=lambda item: item[0] != RAM)
    ]
