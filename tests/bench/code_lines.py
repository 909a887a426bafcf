"""Lines per module: the largest five, the median, and how many are over 300.

.venv/bin/python -m tests.bench.code_lines
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


async def measure() -> dict[str, Any]:
    """Counts every line of every Python module of the two packages."""
    sizes = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for package in ("bot", "engine")
        for path in (ROOT / package).rglob("*.py")
    }
    largest = sorted(sizes.items(), key=lambda item: -item[1])[:5]
    return {
        "modules": len(sizes),
        "lines": sum(sizes.values()),
        "median": statistics.median(sizes.values()),
        "over_300": sum(1 for size in sizes.values() if size > 300),
        "largest": dict(largest),
    }


def main() -> None:
    """Measure and print."""
    import asyncio

    print(json.dumps(asyncio.run(measure())))


if __name__ == "__main__":
    main()
