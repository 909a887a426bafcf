"""`hearth` and `python -m bot`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    try:
        # Seconds on a busy machine, and Ctrl-C may come in any of them.
        from bot.cli import run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
