"""The engine's public nouns: frozen, slotted, units in their names. They travel over the wire as they are (msgspec).

Token ids are plain ints of the loaded model's vocabulary. Opaque strings (`owner`, `scope`, `cache_key`) are never parsed.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum

import msgspec


class Role(StrEnum):
    """Who said a message, in the words of the chat template."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"


class Priority(IntEnum):
    """Lower runs first. Between ADMIN and PERSON lie the configured tiers of people (1 to 9)."""

    ADMIN = 0
    PERSON = 10
    API = 20
    BACKGROUND = 30


class FinishReason(StrEnum):
    """Why a reply ended well."""

    STOP = "stop"  # end-of-generation token or a stop string
    LENGTH = "length"  # max_new_tokens or the window
    CANCELLED = "cancelled"


class FailureCode(StrEnum):
    """Why a reply ended badly. `Failed.retryable` says whether the same request may be sent again."""

    ENGINE_DIED = "engine_died"
    BUSY = "busy"
    TOO_LONG = "too_long"
    DEADLINE = "deadline"
    DECODE = "decode"
    BAD_REQUEST = "bad_request"
    UPSTREAM = "upstream"  # a remote server (backend = "openai") failed
    POISON = "poison"  # the child died each time this request was computed, in the end with nothing beside it


class _Frozen(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all engine nouns."""


class ChatMessage(_Frozen, frozen=True, kw_only=True):
    """One message of a conversation, as the model is to see it.

    `token_ids` is set for an assistant message that this model generated: those ids are used as they are (text that is
    tokenized again need not give the ids that are in the KV cache).
    """

    role: Role
    content: str
    token_ids: tuple[int, ...] = ()


class Rendered(_Frozen, frozen=True, kw_only=True):
    """A conversation through the chat template and tokenizer.

    `starts[i]` is the offset in `token_ids` at which message i begins (its header included), so
    `n_tokens - starts[i]` tokens remain when everything before message i is cut.
    `tail_start` is the offset just after the last assistant message's own content: a caller that keeps a canonical token
    list up to there appends only `token_ids[tail_start:]`. It is 0 when there is no assistant message.
    `thinking_open`: the template itself opened a thinking block at the end of the prompt.
    A backend without a tokenizer gives no ids: then `exact` is False and `n_tokens` is an upper bound.
    """

    token_ids: tuple[int, ...]
    n_tokens: int
    starts: tuple[int, ...]
    tail_start: int = 0
    thinking_open: bool = False
    exact: bool = True


class Sampling(_Frozen, frozen=True, kw_only=True):
    """How the next token is chosen. `temperature = 0` is greedy. Values outside a sampler's domain disable it."""

    temperature: float = 0.7
    top_p: float = 0.95
    top_k: int = 40
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None


class EngineRequest(_Frozen, frozen=True, kw_only=True):
    """One reply to generate.

    `prompt_tokens` ends with the template's generation prompt. `generated_tokens` are ids of this same reply that were
    produced before an interruption: they are decoded as prompt, accepted by the sampler, detokenized silently, counted
    against `max_new_tokens`, and generation goes on behind them.
    `messages` is the same prompt for backends without token ids.
    `cache_key` names the conversation whose KV is reused and kept ("" = none); `scope`: KV is shared only inside one.
    `deadline_s`: seconds from acceptance after which a request that has not started fails (0 = never).
    `lineage` is the same for every try of one reply, so that what kills the child again and again is known by it
    ("" = the same prompt is the same). `alone`: nothing else is computed while this is; set by `EngineProcess`.
    """

    id: str
    prompt_tokens: tuple[int, ...] = ()
    messages: tuple[ChatMessage, ...] = ()
    generated_tokens: tuple[int, ...] = ()
    max_new_tokens: int = 512
    stop: tuple[str, ...] = ()
    sampling: Sampling = Sampling()
    cache_key: str = ""
    owner: str = ""
    scope: str = ""
    priority: int = Priority.PERSON
    deadline_s: float = 0.0
    thinking_open: bool = False
    # Tokens at the start of the prompt that other conversations of this scope share (the system prompt); 0 = unknown.
    n_shared_prefix: int = 0
    lineage: str = ""
    alone: bool = False


class Usage(_Frozen, frozen=True, kw_only=True):
    """What a reply cost, in tokens and seconds."""

    n_prompt: int = 0
    n_cached: int = 0  # of n_prompt: found in the KV cache, not computed
    n_generated: int = 0
    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0


class Queued(_Frozen, frozen=True, kw_only=True, tag="queued"):
    """Waiting; `place` 1 is next in line. Sent on acceptance and when the place changes."""

    request_id: str
    place: int


class Progress(_Frozen, frozen=True, kw_only=True, tag="progress"):
    """Prefill is under way."""

    request_id: str
    done_tokens: int
    total_tokens: int


class Started(_Frozen, frozen=True, kw_only=True, tag="started"):
    """The request has a sequence; `cached_tokens` of its prompt need no computing."""

    request_id: str
    cached_tokens: int


class Delta(_Frozen, frozen=True, kw_only=True, tag="delta"):
    """New output. `token_ids` are all ids since the last delta; `text` and `thinking` what became visible by them.

    Text may lag behind the ids (a character spread over tokens, a possible stop string, a possible tag), never lead.
    """

    request_id: str
    token_ids: tuple[int, ...]
    text: str = ""
    thinking: str = ""


class Finished(_Frozen, frozen=True, kw_only=True, tag="finished"):
    """Terminal. `answer_start`: how many of the reply's ids (from its very first) belong to thinking, not the answer.

    `n_answer`: how many ids from there are the visible answer — without the end-of-generation token and without ids that
    only formed a stop string — so ids[answer_start:answer_start + n_answer] is what the canonical list keeps.
    """

    request_id: str
    reason: FinishReason
    usage: Usage
    answer_start: int = 0
    n_answer: int = 0


class Failed(_Frozen, frozen=True, kw_only=True, tag="failed"):
    """Terminal. `message` is one sentence for an admin."""

    request_id: str
    code: FailureCode
    retryable: bool
    message: str = ""
    retry_after_s: float = 0.0


EngineEvent = Queued | Progress | Started | Delta | Finished | Failed
Terminal = Finished | Failed


class KvReuse(StrEnum):
    """Where a conversation's computed state can be taken up again; from there on its prompt is computed anew."""

    ANYWHERE = "anywhere"
    WINDOW = "window"  # anywhere inside the sliding window
    TURN_ENDS = "turn_ends"  # where a turn ended, and its state was kept
    UNKNOWN = "unknown"  # a remote server's own affair


class ModelInfo(_Frozen, frozen=True, kw_only=True):
    """What is loaded. `n_ctx_tokens` is the real window of ONE conversation; every budget uses it.

    `fingerprint` changes when stored token ids of another file or tokenizer would be wrong here; the KV type is no part of it.
    `absent_workers`: configured RPC workers that it runs without, by address, and why.
    """

    name: str
    path: str
    fingerprint: str
    n_ctx_tokens: int
    n_vocab: int = 0
    n_parallel: int = 1
    kv_cells: int = 0
    exact_counts: bool = True
    kv_reuse: KvReuse = KvReuse.UNKNOWN
    description: str = ""
    absent_workers: dict[str, str] = {}


class EngineState(StrEnum):
    """The life of the child process as `/readyz` tells it."""

    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    FAILED = "failed"
    CLOSED = "closed"


class EngineStats(_Frozen, frozen=True, kw_only=True):
    """Counters since the child started, and the state now.

    `step_back`: one sentence on how far below its settings the engine runs because memory ran out; "" = at full size.
    `lacks`: what it does without because of others (RPC workers that are away, memory that other programs take); "" = nothing.
    `plan`: what was chosen at the start and why, in one line; "" = the settings were taken as they are.
    """

    state: EngineState
    detail: str = ""
    n_running: int = 0
    n_waiting: int = 0
    n_restarts: int = 0
    kv_cells_used: int = 0
    kv_cells_total: int = 0
    n_sequences_kept: int = 0
    decoded_prompt_tokens_total: int = 0
    decoded_generated_tokens_total: int = 0
    # Guessed tokens that were computed, and those of them that the model chose (they count as generated, too).
    drafted_tokens_total: int = 0
    accepted_tokens_total: int = 0
    kv_ram_bytes: int = 0
    kv_disk_bytes: int = 0
    kv_saved_tokens_total: int = 0
    kv_saved_bytes_total: int = 0
    kv_restored_tokens_total: int = 0
    steps_total: int = 0
    step_decode_s: float = 0.0
    step_python_s: float = 0.0
    rss_bytes: int = 0
    child_pid: int = 0
    step_back: str = ""
    lacks: str = ""
    plan: str = ""
