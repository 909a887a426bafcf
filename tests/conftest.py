"""Fixtures for every test. Each kind lives in a module of its own and is only named here."""

from __future__ import annotations

pytest_plugins = ["tests.fixtures_postgres"]
