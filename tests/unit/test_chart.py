"""The proofs' charts: round ticks, and a picture with every line in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from tests.support.chart import COLOURS, Line, draw, ticks


@pytest.mark.parametrize("top", [0.3, 1, 7, 48, 976, 1024, 36_000])
def test_ticks_are_few_and_round_and_reach_the_top(top: float) -> None:
    found = ticks(top)
    assert found[0] == 0
    assert found[-1] >= top
    assert found[-1] <= 2.6 * top
    assert 2 <= len(found) <= 7


def test_a_chart_shows_each_line(tmp_path: Path) -> None:
    path = tmp_path / "chart.png"
    lines = [Line("a", range(100), [n * 10 for n in range(100)]), Line("b", [50], [500], dots=True)]
    draw(path, "Sizes", ("turn", "tokens"), lines, limit=("most", 976))
    with Image.open(path) as image:
        colours = {colour for _, colour in image.convert("RGB").getcolors(100_000)}
    wanted = [tuple(int(c[n : n + 2], 16) for n in (1, 3, 5)) for c in COLOURS[:2]]
    assert set(wanted) <= colours
