"""Which failures `make test` runs a second time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.__main__ import FEW, failed_tests, may_run_again


@pytest.mark.parametrize(
    ("failed", "again"),
    [
        ([], False),
        (["tests/browser/test_demo.py::test_a"], True),
        ([f"tests/crash/test_a.py::test_{number}" for number in range(FEW)], True),
        ([f"tests/crash/test_a.py::test_{number}" for number in range(FEW + 1)], False),
        (["tests/integration/test_not_importable.py"], False),
        (["tests/browser/test_demo.py::test_a", "tests/unit/test_not_importable.py"], False),
    ],
)
def test_only_few_failures_of_tests_are_run_again(failed: list[str], again: bool) -> None:
    assert may_run_again(failed) is again


def test_the_list_that_pytest_leaves_is_read(tmp_path: Path) -> None:
    listed = tmp_path / "lastfailed"
    assert failed_tests(listed) == []
    listed.write_text("{")
    assert failed_tests(listed) == []
    listed.write_text(json.dumps({"tests/b.py::test": True, "tests/a.py::test": True}))
    assert failed_tests(listed) == ["tests/a.py::test", "tests/b.py::test"]
