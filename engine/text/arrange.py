"""Fits a conversation to what a chat template accepts. Pure; knows no jinja and no tokens.

Many templates refuse a system message, or demand that user and assistant take turns. What a template cannot take is moved
or merged here, so that a conversation is never refused for its form:
- a system message that the template has no place for goes before the next user message's text;
- neighbours of one role become one message, their texts parted by an empty line;
- an assistant message at the very beginning gets an empty user message before it.
All of it depends only on the messages so far, so a longer conversation begins like the shorter one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.text.thinking import strip_thinking
from engine.types import ChatMessage, Role

SEPARATOR = "\n\n"


@dataclass(frozen=True, slots=True)
class Traits:
    """What a template accepts. The defaults are the strictest."""

    leading_system: bool = False
    late_system: bool = False
    system_runs: bool = False
    same_role_runs: bool = False
    assistant_first: bool = False


STRICT = Traits()


@dataclass(frozen=True, slots=True)
class Part:
    """The content of one message; `index` is its place in the conversation as given (-1: made here)."""

    index: int
    text: str
    token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Slot:
    """One message as the template sees it. Its list of parts is filled while arranging, then only read."""

    role: Role
    parts: list[Part] = field(default_factory=list)


def arrange(messages: Sequence[ChatMessage], traits: Traits) -> list[Slot]:
    """The conversation in the form that a template of these traits accepts."""
    return _Arranger(traits).run(messages)


class _Arranger:
    """Builds one list of slots; lives for one call of `arrange`."""

    def __init__(self, traits: Traits) -> None:
        self._traits = traits
        self._slots: list[Slot] = []
        self._homeless: list[Part] = []  # system texts on their way to the next user message

    def run(self, messages: Sequence[ChatMessage]) -> list[Slot]:
        for index, message in enumerate(messages):
            part = _part(index, message)
            if message.role is Role.SYSTEM:
                self._system(part)
            elif message.role is Role.USER:
                self._user([part])
            else:
                self._assistant(part)
        if self._homeless:
            self._user([])
        return self._slots

    def _system(self, part: Part) -> None:
        leading = not self._homeless and all(slot.role is Role.SYSTEM for slot in self._slots)
        if not (self._traits.leading_system if leading else self._traits.late_system):
            self._homeless.append(part)
        else:
            self._add(Role.SYSTEM, [part], may_follow_its_like=self._traits.system_runs)

    def _user(self, parts: list[Part]) -> None:
        parts = self._homeless + parts
        self._homeless = []
        self._add(Role.USER, parts, may_follow_its_like=self._traits.same_role_runs)

    def _assistant(self, part: Part) -> None:
        begun = any(slot.role is not Role.SYSTEM for slot in self._slots)
        if self._homeless:
            self._user([])
        elif not begun and not self._traits.assistant_first:
            self._user([Part(-1, "")])
        self._add(Role.ASSISTANT, [part], may_follow_its_like=self._traits.same_role_runs)

    def _add(self, role: Role, parts: list[Part], *, may_follow_its_like: bool) -> None:
        if self._slots and self._slots[-1].role is role and not may_follow_its_like:
            self._slots[-1].parts.extend(parts)
        else:
            self._slots.append(Slot(role, parts))


def _part(index: int, message: ChatMessage) -> Part:
    # Callers are typed, but a None from a JSON body has ended more than one bot's day.
    content = message.content or ""
    if message.role is Role.ASSISTANT and not message.token_ids:
        content = strip_thinking(content)
    return Part(index, content, message.token_ids if message.role is Role.ASSISTANT else ())
