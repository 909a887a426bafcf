"""How the scripted backend dies when it is told to, and which sizes it has memory for. Real signals, so only for a child process.

Settings (part of `EngineConfig.fake`):
    die         abort | segv | kill | ill | bus | hang: what happens over a request
    die_on      only over prompts that hold this text (default: any)
    die_after   when so many tokens of its reply are there (default 0)
    last_words  a line on standard error before it
    fits        sizes that there is memory for, as "n_ubatch=128 n_ctx=2048"; larger ones run out of it
    short_at    refuse | load | decode: how that ends (default refuse: a load that is refused in a sentence)
    spare       a file: as long as it exists, every size fits
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

from engine.config import EngineConfig
from engine.errors import EngineConfigError

KNOWN: Final = frozenset({"die", "die_on", "die_after", "last_words", "fits", "short_at", "spare"})
_SIGNALS: Final = {
    "abort": signal.SIGABRT,
    "segv": signal.SIGSEGV,
    "kill": signal.SIGKILL,
    "ill": signal.SIGILL,
    "bus": signal.SIGBUS,
}
_NO_MEMORY: Final = "alloc_buffer: failed to allocate buffer of size 1073741824"


class FakeDeath:
    """Owned by the backend; called on its loop thread. Raises EngineConfigError for settings that make no sense."""

    def __init__(self, config: EngineConfig) -> None:
        script = config.fake
        self._config = config
        self._how = script.get("die", "")
        self._marker = list(script.get("die_on", "").encode())
        self._words = script.get("last_words", "")
        self._short_at = script.get("short_at", "refuse")
        self._spare = script.get("spare", "")
        try:
            self._after = int(script.get("die_after", "0"))
            pairs = (pair.partition("=") for pair in script.get("fits", "").split())
            self._fits = {name: int(size) for name, _, size in pairs}
            sizes = [getattr(config, name) for name in self._fits]
        except (ValueError, AttributeError) as error:
            raise EngineConfigError(f"models.{config.name}.fake: {error}") from None
        if self._how not in {"", "hang", *_SIGNALS} or not all(isinstance(n, int) for n in sizes):
            raise EngineConfigError(f"models.{config.name}.fake: this way to die is not known")

    def on_load(self) -> None:
        """A size too large ends here, by a refusal or in the middle."""
        if self._too_large:
            if self._short_at == "refuse":
                raise EngineConfigError(
                    f"models.{self._config.name}: the script does not fit into memory"
                )
            if self._short_at == "load":
                self._die(signal.SIGABRT, self._words or _NO_MEMORY)

    def on_decode(self) -> None:
        """Or in the first batch."""
        if self._short_at == "decode" and self._too_large:
            self._die(signal.SIGABRT, self._words or _NO_MEMORY)

    def on_sample(self, prompt: Sequence[int], n_reply: int) -> None:
        """A token is to be chosen behind `prompt` and `n_reply` tokens."""
        if not self._how or n_reply < self._after or not _holds(prompt, self._marker):
            return
        if self._how == "hang":
            threading.Event().wait()
        self._die(_SIGNALS[self._how], self._words)

    @property
    def _too_large(self) -> bool:
        if self._spare and Path(self._spare).exists():
            return False
        return any(getattr(self._config, name) > size for name, size in self._fits.items())

    @staticmethod
    def _die(how: signal.Signals, words: str) -> NoReturn:
        if words:
            print(words, file=sys.stderr, flush=True)  # noqa: T201 - as native libraries do
        os.kill(os.getpid(), how)
        raise AssertionError(f"{how.name} did not end this process")


def _holds(tokens: Sequence[int], part: Sequence[int]) -> bool:
    n = len(part)
    return any(list(tokens[at : at + n]) == part for at in range(len(tokens) - n + 1))
