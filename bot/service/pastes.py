"""Long pastes: chat clients cut one text into several messages, of about 4000 characters each (wecom.md §2.2).

A question as long as such a part is stored at once but held for a short time; what the same person writes meanwhile in the
same conversation joins it. Anything shorter waits for nothing, and ends the waiting. What is held, and until when, is in the
store: this only knows when to look there again.
"""

from __future__ import annotations

from bot.domain.types import InboundMessage, Lane
from bot.service.clock import Clock

# A message of at least so many characters may be a part.
PART_CHARS = 3500
# How far a platform's clock and ours may be apart when a part that came late is placed beside the one before.
LATE_S = 3.0
# A message is on its way for so long only when it was sent again (Feishu: after 15 s at the soonest).
LATE_AFTER_S = 5.0
# The store's clock is another one.
_MARGIN_S = 0.01

_Place = tuple[str, str, str]


class Pastes:
    """Knows whose paste goes on. State: the ends of the waits, on the clock's monotonic scale. Owner: the service."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until_s: dict[_Place, float] = {}
        self._lanes: dict[_Place, Lane] = {}

    def note(self, message: InboundMessage, hold_s: float, lane: Lane) -> None:
        """A message of somebody was stored: it is held for so long, or (0) it was the last part."""
        place = _place(message)
        if hold_s:
            self._until_s[place] = self._clock.monotonic() + hold_s + _MARGIN_S
            self._lanes[place] = lane
        else:
            self._until_s.pop(place, None)

    def goes_on(self, message: InboundMessage) -> bool:
        """Whether a message comes in time to be the next part of one that is held."""
        return self._until_s.get(_place(message), 0.0) > self._clock.monotonic()

    def lane(self, message: InboundMessage) -> Lane:
        """The lane of what a message goes on with; a question's where it goes on with nothing."""
        return self._lanes[_place(message)] if self.goes_on(message) else Lane.CHAT

    def next_end_s(self, at_most: float) -> float:
        """Seconds until the next wait ends, `at_most` where none does before. Those that are over are forgotten."""
        now = self._clock.monotonic()
        self._until_s = {place: end for place, end in self._until_s.items() if end > now}
        self._lanes = {place: lane for place, lane in self._lanes.items() if place in self._until_s}
        return min([at_most, *(end - now for end in self._until_s.values())])


def _place(message: InboundMessage) -> _Place:
    return message.app_id, message.chat_id, message.sender.user_id
