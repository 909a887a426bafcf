"""`python -m tests.prove [suite …]`: run the long proofs, all of them by default."""

from __future__ import annotations

import asyncio
import importlib
import sys

SUITES = (
    "crash",
    "death",
    "load",
    "talk",
    "soak",
    "fuzz",
    "kinds",
    "recall",
    "platforms",
    "tune",
    "doctor",
)


def main() -> None:
    """Run the named suites; exit 1 when an item failed."""
    wanted = sys.argv[1:] or list(SUITES)
    unknown = [name for name in wanted if name not in SUITES]
    if unknown:
        sys.exit(f"no proof is called {unknown[0]}; there are {', '.join(SUITES)}")
    good = True
    for name in wanted:
        suite = importlib.import_module(f"tests.prove.{name}").build()
        good = asyncio.run(suite.run()) and good
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
