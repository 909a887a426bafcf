"""From a snapshot to what a person is to see: buttons, preview and sentences from the catalogue. Pure."""

from __future__ import annotations

from bot.domain.catalogue import Language, say
from bot.domain.types import Outcome, Snapshot
from bot.platforms.base import Button, ReplyView

SUMMARY_CHARS = 60


class ViewMaker:
    """Makes the views of one reply. `interactive` replies (answers of the model) carry buttons."""

    def __init__(self, language: Language, *, interactive: bool) -> None:
        self._language = language
        self._interactive = interactive

    def make(self, snapshot: Snapshot, status: str = "") -> ReplyView:
        """The view of a snapshot; the status counts only while there is no text."""
        text = snapshot.text.strip() if snapshot.final else snapshot.text.lstrip()
        return ReplyView(
            rev=snapshot.rev,
            text=text,
            status="" if text or snapshot.final else status,
            outcome=snapshot.outcome,
            notice=snapshot.notice,
            summary=self._summary(snapshot),
            buttons=self._buttons(snapshot),
            possible_repeat=say(self._language, "end.possible_repeat"),
            refused=say(self._language, "end.refused"),
        )

    def _summary(self, snapshot: Snapshot) -> str:
        if not snapshot.final:
            return say(self._language, "summary.growing")
        line = " ".join((snapshot.text or snapshot.notice).split())
        return line if len(line) <= SUMMARY_CHARS else line[: SUMMARY_CHARS - 1] + "…"

    def _buttons(self, snapshot: Snapshot) -> tuple[Button, ...]:
        if not self._interactive or snapshot.outcome is Outcome.SILENT:
            return ()
        actions: tuple[str, ...] = ("regenerate", "new_topic") if snapshot.final else ("stop",)
        if snapshot.outcome is Outcome.LENGTH:
            actions = ("continue", *actions)
        return tuple(Button(action, say(self._language, f"button.{action}")) for action in actions)
