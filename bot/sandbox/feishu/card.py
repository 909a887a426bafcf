"""One card: its JSON, sequence, streaming state and the timeline of what was done to it. Changed only by CardKit and Messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bot.sandbox.feishu.cardschema import Json, tagged

if TYPE_CHECKING:
    from bot.sandbox.feishu.world import Message


@dataclass(frozen=True, slots=True)
class CardOp:
    """One operation on a card, refused ones too (`code` ≠ 0). `text` is what a content call carried."""

    at: float
    kind: str
    sequence: int
    code: int
    element_id: str = ""
    text: str = ""


class Card:
    """A card entity (or the card of a raw interactive message, whose id is ""). Owner: CardKit.

    `streaming_since` is when streaming was last switched on. `closed_by_app` tells an explicit end from the 10 minutes.
    """

    def __init__(self, card_id: str, data: Json, now: float) -> None:
        self.id = card_id
        self.created_at = now
        self.data = data
        self.message: Message | None = None
        self.sequence = 0
        self.streaming = False
        self.streaming_since = 0.0
        self.closed_by_app = False
        self.timed_out = False
        self.click_lock = False
        self.uuids: set[str] = set()
        self.ops: list[CardOp] = []
        self.streamed: dict[str, str] = {}
        self.take(data, now)

    def take(self, data: Json, now: float) -> None:
        """Replace the whole JSON."""
        self.data = data
        self.streamed.clear()
        self.set_streaming(bool(data.get("config", {}).get("streaming_mode", False)), now)

    def set_streaming(self, on: bool, now: float) -> None:
        """Switching on starts the 10 minutes; "on" while on does not restart them (unconfirmed, the harder case)."""
        if on and not self.streaming:
            self.streaming_since = now
            self.closed_by_app = False
            self.timed_out = False
        elif not on and (self.streaming or self.timed_out):
            self.closed_by_app = True
            self.timed_out = False
        self.streaming = on

    def expire_streaming(self, now: float, after_s: float) -> None:
        """End streaming when its time is up, whatever the activity (feishu.md §5.2)."""
        if self.streaming and now - self.streaming_since >= after_s:
            self.streaming = False
            self.timed_out = True

    @property
    def elements(self) -> list[Json]:
        """The top level of the body."""
        body = self.data.get("body") or self.data
        found: list[Json] = body.get("elements", [])
        return found

    @property
    def summary(self) -> str:
        """The chat-list preview; the platform shows its own words when it is empty."""
        return str(self.data.get("config", {}).get("summary", {}).get("content", ""))

    @property
    def text(self) -> str:
        """What a person reads, without the buttons."""
        return "\n".join(texts_of(self.elements))

    @property
    def buttons(self) -> list[Json]:
        """Every button, in order."""
        return [item for item in tagged(self.elements) if item["tag"] == "button"]

    def find(self, element_id: str) -> Json | None:
        """The component with this element_id."""
        for item in tagged(self.data.get("body", {})):
            if item.get("element_id") == element_id:
                return item
        return None


def texts_of(nodes: Any) -> list[str]:
    """The visible texts below `nodes`, buttons left out, empty ones too."""
    found: list[str] = []
    for node in nodes if isinstance(nodes, list) else [nodes]:
        if not isinstance(node, dict) or node.get("tag") == "button":
            continue
        if node.get("tag") in {"markdown", "plain_text", "lark_md"}:
            if node.get("content"):
                found.append(str(node["content"]))
            continue
        for key in ("text", "header", "title", "columns", "elements"):
            if key in node:
                found.extend(texts_of(node[key]))
    return found
