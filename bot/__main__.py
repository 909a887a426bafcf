"""`hearth` and `python -m bot`."""

from __future__ import annotations


def main() -> None:
    """Run the command line."""
    from bot.cli import run

    run()


if __name__ == "__main__":
    main()
