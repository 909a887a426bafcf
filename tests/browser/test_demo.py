"""`hearth demo` as a newcomer meets it: the real service, the real demo model, the strict sandbox, a real browser."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from tests.support.stand import ROOT, free_port

pytestmark = [
    pytest.mark.browser,
    pytest.mark.model,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(180),
]
OpenPage = Callable[..., Awaitable[Page]]
SLOW_MS = 60_000


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def address(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """The page's address."""
    port = free_port()
    folder: Path = tmp_path_factory.mktemp("demo")
    with (folder / "demo.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bot", "demo", "--port", str(port), "--no-browser", "--language", "en",
            "--data", str(folder / "data"), cwd=ROOT, stdout=log, stderr=log,
        )  # fmt: skip
        url = f"http://127.0.0.1:{port}"
        try:
            await _announced(folder / "demo.log", process)
            yield url
        finally:
            process.terminate()
            code = await asyncio.wait_for(process.wait(), 40)
    text = (folder / "demo.log").read_text(errors="replace")
    assert code == 0, text[-2000:]
    assert "Traceback" not in text, text[-3000:]


async def _announced(log: Path, process: asyncio.subprocess.Process) -> None:
    for _ in range(600):
        assert process.returncode is None, "the demo ended at once"
        if "and ask the bot something" in log.read_text(errors="replace"):
            return
        await asyncio.sleep(0.1)
    raise AssertionError("the demo does not come up")


WATCH_GROWTH = """() => {
  window.lengths = [];
  new MutationObserver(() => {
    const text = [...document.querySelectorAll("[data-testid=card]")].at(-1)?.querySelector(".md");
    const length = text ? text.innerText.length : 0;
    if (length > (window.lengths.at(-1) ?? 0)) window.lengths.push(length);
  }).observe(document.body, {childList: true, subtree: true, characterData: true});
}"""
"""The page itself notes each length of the last card: a poll from outside misses most of a short answer."""


async def ask(page: Page, text: str) -> None:
    """Type and press Enter."""
    await page.get_by_test_id("composer").fill(text)
    await page.get_by_test_id("composer").press("Enter")


async def settled(page: Page) -> None:
    """No card is growing."""
    await expect(page.get_by_test_id("card-streaming")).to_have_count(0, timeout=SLOW_MS)
    await expect(page.locator(".md.is-typing")).to_have_count(0, timeout=SLOW_MS)


async def test_ask_watch_it_grow_stop_and_reset(open_page: OpenPage) -> None:
    page = await open_page()
    await expect(page.get_by_test_id("banner")).to_contain_text("SmolLM2")

    await page.evaluate(WATCH_GROWTH)
    await ask(page, "What is photosynthesis?")
    await expect(page.get_by_test_id("card-streaming")).to_be_visible(timeout=SLOW_MS)
    await settled(page)
    lengths = await page.evaluate("window.lengths")
    assert len(lengths) > 3, f"the card did not grow: {lengths}"
    await expect(page.get_by_test_id("button-regenerate").last).to_be_visible(timeout=SLOW_MS)
    await expect(page.get_by_test_id("card")).to_have_count(1)

    await ask(page, "Write a very long story about a lighthouse keeper and the sea.")
    await expect(page.get_by_test_id("button-stop")).to_be_visible(timeout=SLOW_MS)
    await page.get_by_test_id("button-stop").click()
    await expect(page.get_by_test_id("toast").first).to_be_visible(timeout=SLOW_MS)
    await settled(page)
    await expect(page.get_by_test_id("button-stop")).to_have_count(0, timeout=SLOW_MS)

    await ask(page, "/status")
    await expect(page.get_by_test_id("messages")).to_contain_text("2 turns", timeout=SLOW_MS)
    await ask(page, "/reset")
    await settled(page)
    await ask(page, "/status")
    await expect(page.get_by_test_id("messages")).to_contain_text("0 turns", timeout=SLOW_MS)
