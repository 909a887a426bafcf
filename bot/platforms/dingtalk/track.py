"""`outTrackId`: our name for a card (dingtalk.md §5.1). It is the idempotency key of a card's creation, the same in every
process that plans the card, and tells which turn a pressed button belongs to. Pure.
"""

from __future__ import annotations

import hashlib


def track_id(turn_id: str, n: int, app_id: str) -> str:
    """The id of the card that shows part `n` of a turn's reply. Unique for ever, because turn ids are."""
    check = hashlib.sha256(f"{app_id}\n{turn_id}\n{n}".encode()).hexdigest()[:12]
    return f"{turn_id}.{n}.{check}"


def turn_of(out_track_id: str) -> str:
    """The turn whose card this is; "" when the id is not one of ours."""
    turn_id, dot, rest = out_track_id.partition(".")
    return turn_id if dot and rest.count(".") == 1 else ""
