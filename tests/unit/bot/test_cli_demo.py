"""`hearth demo`: which browser is opened."""

from __future__ import annotations

import webbrowser

import pytest

from bot.cli.demo import open_page


@pytest.mark.parametrize(
    ("kind", "opened"),
    [(webbrowser.GenericBrowser, []), (webbrowser.BackgroundBrowser, ["http://page"])],
)
def test_a_browser_in_the_terminal_is_left_alone(
    kind: type[webbrowser.GenericBrowser], opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    browser, asked = kind("w3m"), []
    monkeypatch.setattr(kind, "open", lambda _self, url: asked.append(url))
    monkeypatch.setattr(webbrowser, "get", lambda: browser)
    open_page("http://page")
    assert asked == opened


def test_a_machine_without_any_browser_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise webbrowser.Error("could not locate runnable browser")

    monkeypatch.setattr(webbrowser, "get", none)
    open_page("http://page")
