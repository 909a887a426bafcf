"""Renders with the real contents: for templates that look into them, so that marks do not work.

Control texts in contents are broken by zero-width spaces before the template sees them. Replies keep their own ids where
their text is found again in the output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.text.arrange import SEPARATOR, Slot
from engine.text.sandbox import TemplateFault
from engine.text.specials import SpecialTexts
from engine.text.thinking import opens_thinking
from engine.text.tokens import Tokenize, TokenList
from engine.types import Rendered, Role

RenderText = Callable[[Sequence[tuple[str, str]], bool], str]

# Where a message begins is found by rendering all messages before it, which is quadratic; so only for the newest ones.
_MAX_PREFIXES = 256


class PlainRenderer:
    """Belongs to one ChatTemplate and its thread."""

    def __init__(self, render_text: RenderText, specials: SpecialTexts, tokenize: Tokenize) -> None:
        self._render_text = render_text
        self._specials = specials
        self._tokenize = tokenize

    def render(self, slots: list[Slot], n_messages: int, add_generation_prompt: bool) -> Rendered:
        """The ids of arranged messages; of more than 256 the older ones are said to start at 0."""
        text = self._text(slots, add_generation_prompt)
        bounds = self._bounds(slots, text)
        ids = TokenList(self._tokenize)
        starts = [0] * n_messages
        tail_start = position = 0
        for k, slot in enumerate(slots):
            ids.text(text[position : bounds[k]])
            begin = ids.offset()
            position = bounds[k]
            for part in slot.parts:
                if part.index >= 0:
                    starts[part.index] = begin
            if slot.role is Role.ASSISTANT:
                found = self._find_reply(slots, k, text, (position, bounds[k + 1]))
                ids.text(text[position : found[0]])
                ids.offset()
                self._put_reply(ids, slot, text[slice(*found)])
                position = found[1]
                tail_start = ids.offset()
        ids.text(text[position : bounds[-1]])
        ids.offset()
        ids.text(text[max(position, bounds[-1]) :])
        n_tokens = ids.offset()
        starts[0] = 0
        return Rendered(
            token_ids=tuple(ids.token_ids),
            n_tokens=n_tokens,
            starts=tuple(starts),
            tail_start=tail_start,
            thinking_open=add_generation_prompt and opens_thinking(text[bounds[-1] :]),
        )

    def _find_reply(
        self, slots: list[Slot], k: int, text: str, bounds: tuple[int, int]
    ) -> tuple[int, int]:
        """Where the content of assistant message `k` stands in `text`: best where generation would begin.

        When it cannot be found, all of the message counts as content.
        """
        content = self._content(slots[k])
        try:
            prompt = self._text(slots[:k], True)
        except TemplateFault:
            prompt = ""
        if prompt and text.startswith(prompt):
            for candidate in (content, content.strip()):
                if text.startswith(candidate, len(prompt)):
                    return len(prompt), len(prompt) + len(candidate)
        content = content.strip()
        at = text.find(content, *bounds) if content else -1
        return (at, at + len(content)) if at >= 0 else bounds

    @staticmethod
    def _put_reply(ids: TokenList, slot: Slot, shown: str) -> None:
        """Emit a reply of which the template shows `shown`: by its ids where it has them."""
        if not any(part.token_ids for part in slot.parts):
            ids.text(shown)
            ids.offset()
            return
        for n, part in enumerate(slot.parts):
            ids.literal(SEPARATOR if n else "")
            if part.token_ids:
                ids.exact(part.token_ids)
            else:
                ids.literal(part.text)

    def _bounds(self, slots: list[Slot], text: str) -> list[int]:
        """Where each message begins in `text`, and where the last one ends."""
        bounds = [0]
        for k in range(1, len(slots) + 1):
            prefix = ""
            if k > len(slots) - _MAX_PREFIXES:
                try:
                    prefix = self._text(slots[:k], False)
                except TemplateFault:
                    prefix = ""
            bounds.append(max(bounds[-1], len(prefix)) if text.startswith(prefix) else bounds[-1])
        return bounds

    def _text(self, slots: Sequence[Slot], add_generation_prompt: bool) -> str:
        contents = [(slot.role.value, self._content(slot)) for slot in slots]
        return self._render_text(contents, add_generation_prompt)

    def _content(self, slot: Slot) -> str:
        return self._specials.neutralise(SEPARATOR.join(part.text for part in slot.parts))
