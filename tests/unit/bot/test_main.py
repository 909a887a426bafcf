"""The `hearth` script itself."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from bot.__main__ import main


class Interrupted(ModuleType):
    """A module during whose import Ctrl-C is pressed."""

    def __getattr__(self, name: str) -> None:
        raise KeyboardInterrupt


def test_ctrl_c_while_modules_are_read_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bot.cli", Interrupted("bot.cli"))
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
