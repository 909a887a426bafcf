"""Which conversation a request goes on with, found by content: clients of this API send the whole history every time.

A history is named by a chain of digests, one per message, that begins with the caller's scope and the model: what one key
has said can never be found by another. After a reply its conversation is remembered under the digest of the history with
the reply in it, together with the ids the model really generated (text that is tokenized again need not give them).

Nothing here is lost that cannot be computed again, so everything is bounded and the least recently used goes first.
"""

from __future__ import annotations

import hashlib
import uuid
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from engine.types import ChatMessage, Role

MAX_ENTRIES = 4096
MAX_BYTES = 64 * 2**20
_ENTRY_BYTES = 640  # what an entry costs beside its ids: objects, digests, its place in two maps
Digest = bytes


@dataclass(frozen=True, slots=True)
class Entry:
    """A history that was seen. `tokens` ends with the ids of the reply it ends with (`n_answer` of them); where `whole`
    they are the entire prompt and the reply, else the reply alone. A history that ends with a question has none."""

    digest: Digest
    parent: Digest | None
    cache_key: str
    tokens: array[int] = field(default_factory=lambda: array("I"))
    n_answer: int = 0
    whole: bool = False

    @property
    def answer_ids(self) -> tuple[int, ...]:
        """The reply's own ids."""
        return tuple(self.tokens[len(self.tokens) - self.n_answer :])

    @property
    def n_bytes(self) -> int:
        """About what it costs to keep it."""
        return _ENTRY_BYTES + self.tokens.itemsize * len(self.tokens)


@dataclass(frozen=True, slots=True)
class Recalled:
    """What is known about a request's history. `messages` carry ids where these are known; `canonical` is the prompt up
    to and including the last assistant message, as it was decoded (empty = not known). `release` the key in the end."""

    chain: tuple[Digest, ...]
    messages: tuple[ChatMessage, ...]
    canonical: tuple[int, ...]
    cache_key: str
    parent: Digest | None


class TalkMemory:
    """Owner of everything remembered about API conversations. Used inside one event loop; holds ids, no text."""

    def __init__(self, max_entries: int = MAX_ENTRIES, max_bytes: int = MAX_BYTES) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._entries: OrderedDict[Digest, Entry] = OrderedDict()
        self._n_bytes = 0
        # Per cache key, the newest history its KV holds; and the keys that requests are using just now.
        self._tips: dict[str, Digest] = {}
        self._busy: set[str] = set()

    @property
    def n_entries(self) -> int:
        """Histories that are remembered."""
        return len(self._entries)

    @property
    def n_bytes(self) -> int:
        """About what they cost."""
        return self._n_bytes

    def recall(self, seed: Sequence[str], messages: Sequence[ChatMessage]) -> Recalled:
        """What is known of a history, with a cache key that is this request's alone until `release`.

        `seed` is what parts memories from each other: the caller's scope and the model's fingerprint.
        """
        chain = _chain(seed, messages)
        known = [self._get(digest) for digest in chain]
        deepest = max((i for i, entry in enumerate(known) if entry), default=-1)
        entry = known[deepest] if deepest >= 0 else None
        with_ids = tuple(
            msgspec.structs.replace(message, token_ids=seen.answer_ids)
            if seen and seen.n_answer
            else message
            for message, seen in zip(messages, known, strict=True)
        )
        last_reply = max(
            (i for i, m in enumerate(messages) if m.role is Role.ASSISTANT), default=-1
        )
        reply = known[last_reply] if last_reply >= 0 else None
        canonical = tuple(reply.tokens) if reply and reply.whole else ()
        n_system = next((i for i, m in enumerate(messages) if m.role is not Role.SYSTEM), 0)
        key = self._key_for(entry, chain[n_system], edits=last_reply >= 0)
        self._busy.add(key)
        parent = entry.digest if entry else None
        return Recalled(chain, with_ids, canonical, key, parent)

    def release(self, recalled: Recalled) -> None:
        """The request is over; call it exactly once for every `recall`."""
        self._busy.discard(recalled.cache_key)

    def note_question(self, recalled: Recalled) -> None:
        """The engine has taken the request: its KV will hold this history. A client that changes what we answered finds
        its conversation by the question."""
        digest = recalled.chain[-1]
        parent = recalled.parent if recalled.parent != digest else None
        known = self._entries.get(digest)
        if known is None or not known.n_answer:
            self._put(Entry(digest, known.parent if known else parent, recalled.cache_key))
        self._tips[recalled.cache_key] = digest

    def note_reply(
        self, recalled: Recalled, text: str, prompt: Sequence[int], answer_ids: Sequence[int]
    ) -> None:
        """The reply that the history goes on with. An empty `prompt` means that it is not what later prompts begin with."""
        if not text.strip():
            return
        reply = ChatMessage(role=Role.ASSISTANT, content=text)
        digest = _next(recalled.chain[-1], reply)
        tokens = array("I", [*prompt, *answer_ids] if prompt else answer_ids)
        self._put(
            Entry(
                digest,
                recalled.chain[-1],
                recalled.cache_key,
                tokens,
                len(answer_ids),
                whole=bool(prompt) and bool(answer_ids),
            )
        )
        self._tips[recalled.cache_key] = digest

    def _key_for(self, entry: Entry | None, first: Digest, *, edits: bool) -> str:
        """The known conversation's key, or a new one where taking it would cost somebody else their KV.

        A new one is made of the first question (its digest is `first`), so that after a restart, when nothing is remembered
        here, the engine still finds what it has stored of the conversation. It believes only tokens that are the same.
        Two people may have begun with the same words. Who goes on where the KV stands gets it; who goes back (a question
        that was edited) gets it as well, but whoever then finds it gone on without them starts one of their own, so that
        two branches never take it from each other for ever.
        """
        if entry is not None and entry.cache_key not in self._busy:
            tip = self._tips.get(entry.cache_key)
            if tip in (None, entry.digest) or (edits and self._descends(tip, entry.digest)):
                return entry.cache_key
        key = f"api-{first.hex()}"
        taken = key in self._busy or key in self._tips
        return f"api-{uuid.uuid4().hex}" if taken else key

    def _descends(self, digest: Digest | None, ancestor: Digest) -> bool:
        for _ in range(len(self._entries)):
            entry = self._entries.get(digest) if digest else None
            if entry is None:
                return False
            if entry.parent == ancestor:
                return True
            digest = entry.parent
        return False

    def _get(self, digest: Digest) -> Entry | None:
        entry = self._entries.get(digest)
        if entry is not None:
            self._entries.move_to_end(digest)
        return entry

    def _put(self, entry: Entry) -> None:
        self._drop(self._entries.get(entry.digest))
        self._entries[entry.digest] = entry
        self._n_bytes += entry.n_bytes
        while len(self._entries) > self._max_entries or self._n_bytes > self._max_bytes:
            self._drop(next(iter(self._entries.values())))

    def _drop(self, entry: Entry | None) -> None:
        if entry is None:
            return
        del self._entries[entry.digest]
        self._n_bytes -= entry.n_bytes
        if self._tips.get(entry.cache_key) == entry.digest:
            del self._tips[entry.cache_key]


def _chain(seed: Sequence[str], messages: Sequence[ChatMessage]) -> tuple[Digest, ...]:
    digest = _hash(b"", *seed)
    chain = []
    for message in messages:
        digest = _next(digest, message)
        chain.append(digest)
    return tuple(chain)


def _next(digest: Digest, message: ChatMessage) -> Digest:
    # Many clients trim what they were answered before they send it back; it is the same reply.
    said = message.content.strip() if message.role is Role.ASSISTANT else message.content
    return _hash(digest, message.role.value, said)


def _hash(before: Digest, *texts: str) -> Digest:
    state = hashlib.blake2b(before, digest_size=16)
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        state.update(len(data).to_bytes(8, "big"))
        state.update(data)
    return state.digest()
