"""The JSON of Feishu's cards and messages (feishu.md §4.4, §5.1): pure building and measuring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bot.config import FeishuBotConfig
from bot.platforms.base import Button
from bot.platforms.feishu.api import dumps

ANSWER_ID = "answer"
CONTROLS_ID = "controls"
PLACEHOLDER = "…"
# 30 KB are allowed for a card or post (§4.2, §5.2), measured after Feishu expanded it: this much for the text leaves room.
CARD_BYTES = 25_000
TEXT_BYTES = 100_000

_BUTTON_TYPES = {"stop": "danger", "regenerate": "primary", "continue": "primary"}


@dataclass(frozen=True, slots=True)
class Face:
    """What one message is to show. `content` is rendered for its kind; `upto_chars` is how much of the text it covers."""

    content: str
    buttons: tuple[Button, ...] = ()
    summary: str = ""
    rev: int = 0
    upto_chars: int = 0


@dataclass(frozen=True, slots=True)
class Typewriter:
    """streaming_config: how a client fills the gap between two updates."""

    print_step: int
    print_frequency_ms: int

    @classmethod
    def of(cls, config: FeishuBotConfig) -> Typewriter:
        """As configured for a bot."""
        return cls(config.print_step, config.print_frequency_ms)


def controls(buttons: tuple[Button, ...], turn_id: str) -> dict[str, Any]:
    """The row of buttons under an answer; each carries {"action", "turn_id"} back (§1.6)."""
    columns = [
        {
            "tag": "column",
            "width": "auto",
            "elements": [
                {
                    "tag": "button",
                    "text": {"tag": "plain_text", "content": button.label},
                    "type": _BUTTON_TYPES.get(button.action, "default"),
                    "behaviors": [
                        {"type": "callback", "value": {"action": button.action, "turn_id": turn_id}}
                    ],
                }
            ],
        }
        for button in buttons
    ]
    return {"tag": "column_set", "element_id": CONTROLS_ID, "columns": columns}


def card(
    face: Face, turn_id: str, *, typewriter: Typewriter | None = None, closing: bool = False
) -> str:
    """A card 2.0 as a JSON string. It streams when a typewriter is given; `closing` says that it no longer does."""
    config: dict[str, Any] = {"update_multi": True}
    if typewriter:
        config["streaming_mode"] = True
        config["streaming_config"] = {
            "print_frequency_ms": {"default": typewriter.print_frequency_ms},
            "print_step": {"default": typewriter.print_step},
            "print_strategy": "fast",
        }
    elif closing:
        config["streaming_mode"] = False
    if face.summary:
        config["summary"] = {"content": face.summary}
    elements: list[dict[str, Any]] = [
        {"tag": "markdown", "element_id": ANSWER_ID, "content": face.content or PLACEHOLDER}
    ]
    if face.buttons:
        elements.append(controls(face.buttons, turn_id))
    return dumps({"schema": "2.0", "config": config, "body": {"elements": elements}})


def card_by_id(card_id: str) -> str:
    """The content of a message that shows a card entity."""
    return dumps({"type": "card", "data": {"card_id": card_id}})


def post(content: str) -> str:
    """The content of a rich-text message: one paragraph of Markdown (§4.4; no wrapper, or 230001)."""
    return dumps({"zh_cn": {"title": "", "content": [[{"tag": "md", "text": content}]]}})


def text(content: str) -> str:
    """The content of a plain message."""
    return dumps({"text": content})


def size_bytes(content: str) -> int:
    """What a text takes inside a card's JSON."""
    return len(dumps(content).encode("utf-8", "replace"))
