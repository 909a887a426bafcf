"""One card: its variables, its state, and the timeline of what was done to it. Changed only by Cards."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from bot.sandbox.dingtalk.markdown import Shown, card_text

if TYPE_CHECKING:
    from bot.sandbox.dingtalk.config import CardButton, Template
    from bot.sandbox.dingtalk.world import Message

State = Literal["created", "processing", "inputing", "finished", "failed"]
_FLOW: dict[str, State] = {"1": "processing", "2": "inputing", "3": "finished", "5": "failed"}


@dataclass(frozen=True, slots=True)
class CardOp:
    """One call on a card, refused ones too (`code` ≠ ""). `text` is what a frame or an update carried."""

    at: float
    kind: str
    code: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Button:
    """A button as the card shows it now."""

    action_id: str
    text: str
    params: dict[str, Any] = field(default_factory=dict)


class Card:
    """A card instance. Owner: Cards.

    `params` are the public variables, which survive; `streamed` is what the frames showed and is not replayed to a
    client that opens the chat later (§5.7). `busy` counts streaming calls under way; `answer_lost`: one took effect without the app
    hearing of it. From `blank_chars` on the card shows
    nothing (field experience).
    """

    def __init__(
        self,
        track_id: str,
        template: Template,
        params: dict[str, str],
        now: float,
        blank_chars: int | None,
    ) -> None:
        self.track_id = track_id
        self.template = template
        self.blank_chars = blank_chars
        self.params = dict(params)
        self.private: dict[str, dict[str, str]] = {}
        self.callback_type = ""
        self.route_key = ""
        self.created_at = now
        self.state: State = "created"
        self.streamed: dict[str, str] = {}
        self.guids: dict[str, str] = {}
        self.messages: list[Message] = []
        self.ops: list[CardOp] = []
        self.busy = 0
        self.in_callback = False
        self.answer_lost = False
        self.summary = ""

    @property
    def growing(self) -> bool:
        """People see 处理中 or 输入中."""
        return self.shown_state in {"processing", "inputing"}

    @property
    def shown_state(self) -> State:
        """With a template that shows `flowStatus` the app's variable says it, else the platform does."""
        if self.template.flow_status and self.state != "created":
            return _FLOW.get(self.params.get("flowStatus", "1"), "processing")
        return self.state

    @property
    def source(self) -> str:
        """The streamed variable's Markdown as the client that watched has it."""
        key = self.template.key
        return self.streamed.get(key, self.params.get(key, ""))

    @property
    def kept_source(self) -> str:
        """The same for a client that opens the chat now: frames are not replayed."""
        return self.params.get(self.template.key, "")

    @property
    def is_blank(self) -> bool:
        """Too long to be shown."""
        return self.blank_chars is not None and len(self.source) > self.blank_chars

    @property
    def shown(self) -> Shown:
        """What a person reads of the main variable."""
        return Shown("", (), (), ()) if self.is_blank else card_text(self.source)

    @property
    def text(self) -> str:
        """What a person reads of the whole card, without the buttons."""
        above, below = (
            [value for _, value in self.others(keys)]
            for keys in (self.template.shown_above, self.template.shown_below)
        )
        return "\n".join(text for text in (*above, self.shown.text, *below) if text)

    def others(self, keys: tuple[str, ...]) -> list[tuple[str, str]]:
        """Further variables that people read, those that are not empty."""
        return [(key, self.params[key]) for key in keys if self.params.get(key)]

    @property
    def buttons(self) -> list[Button]:
        """The buttons that are there now: the template's, and those that a variable lists."""
        found = [self._filled(button) for button in self.template.buttons if self._is_shown(button)]
        return [*found, *_listed(self.params.get(self.template.buttons_key, ""))]

    def _is_shown(self, button: CardButton) -> bool:
        if button.shown_if and self.params.get(button.shown_if) != "true":
            return False
        return not (button.hidden_if and self.params.get(button.hidden_if) == "true")

    def _filled(self, button: CardButton) -> Button:
        params = {name: self._fill(value) for name, value in button.params.items()}
        return Button(button.action_id, self._fill(button.text), params)

    def _fill(self, text: str) -> str:
        for key, held in self.params.items():
            text = text.replace("{" + key + "}", held)
        return text


def _listed(text: str) -> list[Button]:
    """Buttons in a variable: a JSON list, or an object with `msgButtons`. Anything else shows none."""
    try:
        value = msgspec.json.decode(text) if text else None
    except msgspec.DecodeError:
        return []
    if isinstance(value, dict):
        value = value.get("msgButtons")
    found: list[Button] = []
    for item in value if isinstance(value, list) else []:
        if not isinstance(item, dict):
            continue
        params = item.get("params", item.get("value"))
        action = item.get("actionId") or item.get("action_id") or item.get("id") or ""
        found.append(
            Button(
                str(action), str(item.get("text", "")), params if isinstance(params, dict) else {}
            )
        )
    return found
