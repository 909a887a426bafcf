"""Fixtures for every test. Each kind lives in a module of its own and is only named here."""

from __future__ import annotations

import pytest

pytest_plugins = ["tests.fixtures_postgres"]


def pytest_configure(config: pytest.Config) -> None:
    """Leave the long proofs to `make prove` (or `pytest -m long`); pytest's summary counts them as deselected."""
    if not config.option.markexpr:
        config.option.markexpr = "not long"
