"""The chat page in the browser, the same for every played platform: events, guards, verbs."""

from bot.sandbox.page.detail import detail
from bot.sandbox.page.server import Json, Page, PageHost, Sentence

__all__ = ["Json", "Page", "PageHost", "Sentence", "detail"]
