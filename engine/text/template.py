"""A conversation through the model's own chat template to token ids. Owns the rules that keep those ids stable.

How: the template is rendered with a unique mark in place of every content, the output is cut at the marks, and the template's
own text is tokenized with control tokens, contents so that nothing typed by a person can become a control token.
Replies that this model generated enter as the ids they were.

What KV reuse lives on: the same messages always give the same ids, and a conversation that goes on begins with the ids of
the shorter one. To that end ids are cut at every message's header and on both sides of an assistant's content, exactly
where generation cut them, and an assistant's header is the generation prompt whenever the two differ in white space only.
(A template whose generation prompt opens a thinking block is stable up to that block: history is rendered without it.)

A template on which the marks do not work (it looks into contents) is rendered with the real contents, control texts broken
by zero-width spaces. A model file without a usable template gets ChatML: see `fallback`.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.text.arrange import SEPARATOR, STRICT, Slot, Traits, arrange
from engine.text.marks import MarkLost, mark, split_at_marks
from engine.text.plain import PlainRenderer
from engine.text.sandbox import CompiledTemplate, TemplateFault
from engine.text.specials import SpecialTexts
from engine.text.thinking import opens_thinking
from engine.text.tokens import Tokenize, TokenList
from engine.text.turnmarks import TurnMarks
from engine.types import ChatMessage, Rendered, Role

MAX_MESSAGES = 4096
MAX_CHARS = 8 * 1024 * 1024
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_CHATML_END = "<|im_end|>"
_MAX_SEAMS = 512

_PAD = " \n\t "

_S, _U, _A = Role.SYSTEM, Role.USER, Role.ASSISTANT


class ChatTemplate:
    """The chat template of one model; used by one thread at a time (it owns the template's step budget and a small cache).

    `tokenize(text, parse_special)` must add neither BOS nor EOS. `special_texts` are the texts of all control tokens
    (llama.cpp's attributes CONTROL and UNKNOWN).
    `fallback`: the model has no usable template and ChatML is used; `fallback_reason` says why, in one sentence.
    """

    def __init__(
        self,
        source: str,
        *,
        bos_text: str,
        eos_text: str,
        add_bos: bool,
        tokenize: Tokenize,
        special_texts: Sequence[str],
    ) -> None:
        self._tokenize = tokenize
        self._specials = SpecialTexts(special_texts)
        self._bos_text = bos_text
        self._add_bos = add_bos
        self._seams: dict[tuple[Role, Role | None, str], tuple[str, str]] = {}
        self.fallback_reason = ""
        self._template = self._load(source, bos_text, eos_text)
        self._plain = PlainRenderer(self._plain_text, self._specials, tokenize)
        self.fallback = bool(self.fallback_reason)
        lacks_end = self.fallback and _CHATML_END not in self._specials
        stop_texts = (_CHATML_END,) if lacks_end else ()
        self._traits = self._probe_traits()
        self._trims = self._probe_trims() if self._traits else {}
        self.turns = TurnMarks(stop_texts, tuple(self._probe_user_header()))

    def render(self, messages: Sequence[ChatMessage], *, add_generation_prompt: bool) -> Rendered:
        """The ids of a conversation. Raises TemplateFault when it is empty, too large, or the template refuses it."""
        if not messages:
            raise TemplateFault("a conversation needs at least one message")
        n_chars = sum(len(message.content or "") for message in messages)
        if len(messages) > MAX_MESSAGES or n_chars > MAX_CHARS:
            raise TemplateFault(
                f"the conversation has {len(messages)} messages and {n_chars} characters; "
                f"at most {MAX_MESSAGES} and {MAX_CHARS} can be rendered"
            )
        for traits in (self._traits, STRICT):
            if traits is not None:
                try:
                    return self._render_marked(
                        arrange(messages, traits), len(messages), add_generation_prompt
                    )
                except (TemplateFault, MarkLost):
                    continue
        return self._plain.render(arrange(messages, STRICT), len(messages), add_generation_prompt)

    # -- loading: what does this template accept?

    def _load(self, source: str, bos_text: str, eos_text: str) -> CompiledTemplate:
        if not source.strip():
            self.fallback_reason = "the model file has no chat template; ChatML is used instead"
        else:
            try:
                template = CompiledTemplate(source, bos_text=bos_text, eos_text=eos_text)
                template.render([("user", "Hello")], add_generation_prompt=True)
            except TemplateFault as fault:
                self.fallback_reason = f"{fault}; ChatML is used instead"
            else:
                return template
        return CompiledTemplate(CHATML, bos_text=bos_text, eos_text=eos_text)

    def _probe_traits(self) -> Traits | None:
        """None when marks do not even work for the plainest conversations."""
        if not (self._holds(_U) and self._holds(_U, _A, _U)):
            return None
        leading = self._holds(_S, _U) and self._holds(_S, _U, _A, _U)
        return Traits(
            leading_system=leading,
            late_system=leading and self._holds(_S, _U, _A, _S, _U),
            system_runs=leading and self._holds(_S, _S, _U),
            same_role_runs=self._holds(_U, _U, _A, _A, _U),
            assistant_first=self._holds(_A, _U),
        )

    def _holds(self, *roles: Role) -> bool:
        """Whether the template renders such a conversation with every content once, in order."""
        try:
            self._pieces([Slot(role) for role in roles], add_generation_prompt=True)
        except (TemplateFault, MarkLost):
            return False
        return True

    def _probe_trims(self) -> dict[Role, tuple[bool, bool]]:
        """Per role, whether the template trims a content's beginning and its end: marks hide that from it."""
        roles = (_S, _U, _A, _U) if self._traits and self._traits.leading_system else (_U, _A, _U)
        contents = [(role.value, f"{_PAD}{mark(i)}{_PAD}") for i, role in enumerate(roles)]
        pieces = split_at_marks(
            self._template.render(contents, add_generation_prompt=True), len(roles)
        )
        return {
            role: (not pieces[i].endswith(_PAD), not pieces[i + 1].startswith(_PAD))
            for i, role in enumerate(roles)
        }

    def _probe_user_header(self) -> list[int]:
        if not (self._traits and self._traits.leading_system):
            return []
        slots = [Slot(_S), Slot(_U)]
        pieces = self._pieces(slots, add_generation_prompt=True)
        return list(self._tokenize(self._seam(slots, 1, pieces[1])[1], True))

    # -- rendering with marks

    def _pieces(self, slots: Sequence[Slot], *, add_generation_prompt: bool) -> list[str]:
        """The template's own text before, between and after the contents."""
        contents = [(slot.role.value, mark(i)) for i, slot in enumerate(slots)]
        text = self._template.render(contents, add_generation_prompt=add_generation_prompt)
        return split_at_marks(text, len(slots))

    def _render_marked(
        self, slots: list[Slot], n_messages: int, add_generation_prompt: bool
    ) -> Rendered:
        pieces = self._conversation_pieces(slots, add_generation_prompt)
        ids = TokenList(self._tokenize)
        starts = [0] * n_messages
        tail_start = 0
        for k, slot in enumerate(slots):
            footer, header = self._seam(slots, k, pieces[k]) if k else ("", pieces[0])
            ids.text(footer)
            begin = ids.offset() if k else 0
            ids.text(header)
            later = self._put_content(ids, slot, (header, pieces[k + 1]))
            self._note_starts(starts, slot, [begin, *later], header)
            if slot.role is _A:
                tail_start = ids.offset()
        footer, generation_prompt = self._seam(slots, len(slots), pieces[-1])
        ids.text(footer)
        ids.offset()
        ids.text(generation_prompt)
        n_tokens = ids.offset()
        starts[0] = 0  # also when an empty question had to be put before it
        return Rendered(
            token_ids=tuple(ids.token_ids),
            n_tokens=n_tokens,
            starts=tuple(starts),
            tail_start=tail_start,
            thinking_open=add_generation_prompt and opens_thinking(pieces[-1]),
        )

    def _conversation_pieces(self, slots: list[Slot], add_generation_prompt: bool) -> list[str]:
        """The pieces of a whole conversation, BOS included.

        Some templates write the last reply differently from all earlier ones (Qwen3 adds an empty thinking block). A
        conversation that ends with a reply is therefore rendered as though a question followed, and cut before that.
        """
        closed = slots[-1].role is _A and not add_generation_prompt
        asked = [*slots, Slot(_U)] if closed else slots
        pieces = self._pieces(asked, add_generation_prompt=add_generation_prompt)
        if closed:
            footer, _ = self._seam(asked, len(slots), pieces[-2])
            pieces[-2:] = [footer]
        pieces[0] = self._with_bos(pieces[0])
        return pieces

    def _put_content(self, ids: TokenList, slot: Slot, around: tuple[str, str]) -> list[int]:
        """Emit a slot's parts; returns the offsets at which those after the first begin."""
        before, after = around
        offsets: list[int] = []
        for n, part in enumerate(slot.parts):
            if n:
                before = SEPARATOR
                ids.text(SEPARATOR)
                offsets.append(ids.offset())
            text = self._trimmed(slot.role, part.text)
            follows = after if n == len(slot.parts) - 1 else SEPARATOR
            if part.token_ids:
                ids.exact(part.token_ids)
            elif slot.role is _A or self._specials.touch(before, text, follows):
                ids.literal(text)
            else:
                ids.text(text)
        return offsets

    def _trimmed(self, role: Role, text: str) -> str:
        left, right = self._trims.get(role, (False, False))
        text = text.lstrip() if left else text
        return text.rstrip() if right else text

    def _seam(self, slots: Sequence[Slot], k: int, piece: str) -> tuple[str, str]:
        """Divide the template's text between two contents: (end of message k - 1, header of message k)."""
        role = slots[k].role if k < len(slots) else None
        key = (slots[k - 1].role, role, piece)
        if key not in self._seams:
            if len(self._seams) >= _MAX_SEAMS:
                self._seams.clear()
            self._seams[key] = self._find_seam(slots[:k], role, piece)
        return self._seams[key]

    def _find_seam(self, before: Sequence[Slot], role: Role | None, piece: str) -> tuple[str, str]:
        footer = self._last_piece(before, add_generation_prompt=False)
        if footer is None or not piece.startswith(footer):
            footer = ""
        if role is _A:
            prompt = self._last_piece(before, add_generation_prompt=True)
            if prompt and prompt.startswith(footer) and prompt.rstrip() == piece.rstrip():
                piece = prompt
        return self._at_control_text(footer, piece[len(footer) :])

    def _at_control_text(self, footer: str, header: str) -> tuple[str, str]:
        """Move a cut that would fall into plain text ("</s>\\n" | "<|user|>\\n" of a model without such a token) back to
        the last control text: some tokenizers put a space before every text that they are given.
        """
        if not header or any(start == 0 for start, _ in self._specials.spans(header)):
            return footer, header
        cut = max((end for _, end in self._specials.spans(footer)), default=len(footer))
        return footer[:cut], footer[cut:] + header

    def _plain_text(self, contents: Sequence[tuple[str, str]], add_generation_prompt: bool) -> str:
        return self._with_bos(
            self._template.render(contents, add_generation_prompt=add_generation_prompt)
        )

    def _last_piece(self, slots: Sequence[Slot], *, add_generation_prompt: bool) -> str | None:
        try:
            return self._pieces(slots, add_generation_prompt=add_generation_prompt)[-1]
        except (TemplateFault, MarkLost):
            return None

    def _with_bos(self, text: str) -> str:
        """The template may write BOS itself; the model must not see it twice."""
        if self._add_bos and not text.lstrip().startswith(self._bos_text):
            return self._bos_text + text
        return text

    def _note_starts(self, starts: list[int], slot: Slot, offsets: list[int], header: str) -> None:
        """A message that was merged into its neighbour counts as though it had a header of its own.

        So the tokens that remain when everything before it is cut come out right.
        """
        n_header = len(self._tokenize(header, True)) if len(offsets) > 1 else 0
        for n, part in enumerate(slot.parts):
            if part.index >= 0:
                starts[part.index] = max(offsets[0], offsets[n] - n_header) if n else offsets[0]
