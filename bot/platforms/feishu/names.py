"""What people are called: an event names whom it mentions, and never who wrote it (feishu.md §1.4). Pure memory."""

from __future__ import annotations

from bot.platforms.feishu.content import readable

_MAX_PEOPLE = 5000
_MAX_CHARS = 60


class Names:
    """Open ids and the names that mentions gave them; who was not named for longest is forgotten. Owner: the adapter."""

    def __init__(self, max_people: int = _MAX_PEOPLE) -> None:
        self._max_people = max_people
        self._names: dict[str, str] = {}

    def learn(self, mentions: object) -> None:
        """Take the names out of a message's `mentions`, whatever shape they have."""
        for entry in mentions if isinstance(mentions, list) else []:
            ids = entry.get("id") if isinstance(entry, dict) else None
            open_id = ids.get("open_id") if isinstance(ids, dict) else None
            name = entry.get("name") if isinstance(entry, dict) else None
            if isinstance(open_id, str) and open_id and isinstance(name, str) and name.strip():
                self._names.pop(open_id, None)
                self._names[open_id] = readable(name)[:_MAX_CHARS]
        while len(self._names) > self._max_people:
            del self._names[next(iter(self._names))]

    def of(self, open_id: str) -> str:
        """A person's name, "" while nobody has mentioned them."""
        return self._names.get(open_id, "")
