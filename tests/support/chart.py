"""Line charts as PNG files for the proofs: axes, a legend, lines, nothing else. Pillow draws them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

_SIZE = (1000, 480)
_BOX = (80, 60, 980, 410)  # left, top, right, bottom of the plot
_INK, _GRID = "#222222", "#dddddd"
COLOURS = ("#1f6fb4", "#d9822b", "#3a9a5b", "#8a4fa3")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart; `xs` ascend. `dots`: single points instead."""

    label: str
    xs: Sequence[float]
    ys: Sequence[float]
    dots: bool = False


def ticks(top: float, n: int = 5) -> list[float]:
    """Round steps from 0 to at least `top`."""
    raw = max(top, 1e-9) / n
    size = 10.0 ** (len(str(int(raw))) - 1) if raw >= 1 else 0.1
    step = next(size * m for m in (1, 2, 2.5, 5, 10, 20, 50, 100) if size * m >= raw)
    count = int(-(-top // step)) or 1
    return [step * i for i in range(count + 1)]


def draw(
    path: Path,
    title: str,
    axes: tuple[str, str],
    lines: Sequence[Line],
    *,
    limit: tuple[str, float] | None = None,
) -> None:
    """Write a chart. `axes`: what x and y are, with units; `limit`: a name and a height for a dashed line."""
    image = Image.new("RGB", _SIZE, "white")
    pen = ImageDraw.Draw(image)
    font = ImageFont.load_default(size=14)
    left, top, right, bottom = _BOX
    heights = [y for line in lines for y in line.ys] + ([limit[1]] if limit else [])
    x_ticks = ticks(max(x for line in lines for x in line.xs))
    y_ticks = ticks(max(heights))

    def at(x: float, y: float) -> tuple[float, float]:
        return (
            left + (right - left) * x / x_ticks[-1],
            bottom - (bottom - top) * y / y_ticks[-1],
        )

    for y in y_ticks:
        pen.line([at(0, y), at(x_ticks[-1], y)], fill=_GRID)
        pen.text((left - 8, at(0, y)[1]), f"{y:g}", fill=_INK, font=font, anchor="rm")
    for x in x_ticks:
        pen.line([at(x, 0), (at(x, 0)[0], bottom + 5)], fill=_INK)
        pen.text((at(x, 0)[0], bottom + 8), f"{x:g}", fill=_INK, font=font, anchor="ma")
    pen.line([at(0, 0), at(x_ticks[-1], 0)], fill=_INK)
    pen.text((left, 12), title, fill=_INK, font=ImageFont.load_default(size=18))
    pen.text(((left + right) / 2, bottom + 30), axes[0], fill=_INK, font=font, anchor="ma")
    pen.text((left, top - 20), axes[1], fill=_INK, font=font)
    if limit:
        y = at(0, limit[1])[1]
        for x in range(left, right, 12):
            pen.line([(x, y), (x + 6, y)], fill=_INK)
        pen.text((right - 4, y - 4), limit[0], fill=_INK, font=font, anchor="rs")
    for n, (line, colour) in enumerate(zip(lines, COLOURS, strict=False)):
        points = [at(x, y) for x, y in zip(line.xs, line.ys, strict=True)]
        if line.dots:
            for x, y in points:
                pen.ellipse((x - 3, y - 3, x + 3, y + 3), fill=colour)
        elif len(points) > 1:
            pen.line(points, fill=colour, width=2)
        y = _SIZE[1] - 22
        pen.rectangle((left + 230 * n, y, left + 230 * n + 14, y + 10), fill=colour)
        pen.text((left + 230 * n + 20, y + 5), line.label, fill=_INK, font=font, anchor="lm")
    image.save(path, optimize=True)
