"""The engine's error tree, classed by what the caller must do next.

EngineError
├── EngineConfigError    the settings or the model file are wrong: tell the admin, do not retry
├── EngineUnavailable    the child is starting or has died: the same request may be sent again later
├── EngineBusy           the queue is full: try again after `retry_after_s`
├── PromptTooLong        the request can never fit: shorten it
└── TextRefused          the child died each time it read this text: change it
"""

from __future__ import annotations


class EngineError(Exception):
    """Base of everything the engine raises on purpose; the message is one sentence for an admin."""


class EngineConfigError(EngineError):
    """The settings or the model file are wrong; sending the request again cannot help."""


class EngineUnavailable(EngineError):
    """The engine is loading, has died or is being restarted; the same request may be sent again."""


class EngineBusy(EngineError):
    """The queue is full."""

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(f"the engine's queue is full; try again in {retry_after_s:.0f} s")
        self.retry_after_s = retry_after_s


class TextRefused(EngineError):
    """The child died each time it read this text."""


class PromptTooLong(EngineError):
    """Prompt plus reserved reply exceed the window of one conversation."""

    def __init__(self, n_tokens: int, n_ctx: int) -> None:
        super().__init__(
            f"the prompt and its reply need {n_tokens} tokens; one conversation has {n_ctx}"
        )
        self.n_tokens = n_tokens
        self.n_ctx = n_ctx
