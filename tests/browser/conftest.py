"""A stage on an ephemeral loopback port and Debian's chromium, driven inside the test's own event loop."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from playwright.async_api import Browser, Page, async_playwright

# Test folders are no packages, so the stage beside this file is found by its folder.
sys.path.insert(0, str(Path(__file__).parent))
from mock_stage import MockStage

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

OpenPage = Callable[..., Awaitable[Page]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    """Chromium, started once per file. Missing is a failure where CI says so, elsewhere a skip with its reason."""
    if not CHROMIUM.exists() and os.environ.get("CI") != "true":
        pytest.skip(f"{CHROMIUM} is missing: apt-get install chromium runs the browser tests")
    async with async_playwright() as playwright:
        started = await playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        yield started
        await started.close()


@pytest_asyncio.fixture(loop_scope="module")
async def stage() -> MockStage:
    """The scripted bot; a test may change its answer and pace."""
    return MockStage()


@pytest_asyncio.fixture(loop_scope="module")
async def address(stage: MockStage) -> AsyncIterator[str]:
    """Where the stage listens."""
    runner = web.AppRunner(stage.app(), shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@pytest_asyncio.fixture(loop_scope="module")
async def open_page(browser: Browser, address: str) -> AsyncIterator[OpenPage]:
    """Opens the page in a fresh profile. At the end: no console error, no request to anywhere but the stage."""
    complaints: list[str] = []
    foreign: list[str] = []
    tolerated: list[str] = []

    async def opened(*, tolerate: str = "", **options: Any) -> Page:
        context = await browser.new_context(
            **({"viewport": {"width": 1366, "height": 768}, "locale": "en-US"} | options)
        )
        page = await context.new_page()
        page.set_default_timeout(8000)
        if tolerate:
            tolerated.append(tolerate)
        page.on(
            "console",
            lambda m: complaints.append(m.text) if m.type in {"error", "warning"} else None,
        )
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda r: None if r.url.startswith(address) else foreign.append(r.url))
        await page.goto(address)
        await page.wait_for_selector("body.is-ready")
        return page

    yield opened
    for context in browser.contexts:
        await context.close()
    assert [text for text in complaints if not any(word in text for word in tolerated)] == []
    assert foreign == []
