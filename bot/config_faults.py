"""From what stands in `config.toml` to what pydantic may judge, and from its verdict to sentences. Holds no table's keys."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from bot.errors import ConfigError

_ENV = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
# What pydantic puts into a fault's place to tell which member of a union it means; nobody wrote it into the file.
_TAGS: Final = {"llama.cpp", "fake", "openai", "feishu", "dingtalk", "wecom_bot", "wecom_app"}

Keys = Mapping[str, tuple[type[BaseModel], ...]]


def read_text(path: Path) -> str:
    """A config file's text, with or without the mark that Windows' editors put in front of UTF-8."""
    return path.read_text(encoding="utf-8-sig")


def expand(value: Any, where: str, unset: list[str] | None = None) -> Any:
    """Environment variables put in. Raises ConfigError for the first that is not set; with `unset`, leaves them as they
    stand and adds a sentence for each."""
    if isinstance(value, str):

        def replace(match: re.Match[str]) -> str:
            if match[1] in os.environ:
                return os.environ[match[1]]
            fault = f"{where}: the environment variable {match[1]} is not set"
            if unset is None:
                raise ConfigError(fault)
            unset.append(fault)
            return match[0]

        return _ENV.sub(replace, value)
    if isinstance(value, dict):
        return {
            key: expand(item, f"{where}.{key}" if where else str(key), unset)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [expand(item, f"{where}[{i}]", unset) for i, item in enumerate(value)]
    return value


def with_backends(data: dict[str, Any]) -> dict[str, Any]:
    """The same with every model's backend named: pydantic tells the tables apart by it."""
    models = data.get("models")
    for model in models.values() if isinstance(models, dict) else ():
        if isinstance(model, dict):
            model.setdefault("backend", "llama.cpp")
    return data


def details(error: ValidationError) -> list[ErrorDetails]:
    """All faults, without the values."""
    return error.errors(include_input=False, include_url=False)


def written_path(fault: ErrorDetails) -> list[str]:
    """The keys that lead to a fault, as they stand in the file."""
    return [str(part) for n, part in enumerate(fault["loc"]) if n != 2 or part not in _TAGS]


def say_faults(error: ValidationError, keys: Keys) -> list[str]:
    """Every fault as one sentence."""
    return [say_fault(fault, keys) for fault in details(error)]


def say_fault(fault: ErrorDetails, keys: Keys) -> str:
    """A fault as one sentence: where, what, how to mend it. Never contains a value that could be a secret.

    `keys`: the tables' models by their section, "" for the file itself.
    """
    path = written_path(fault)
    where = ".".join(path) or "config"
    message = fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "extra_forbidden":
        sections = keys.get(path[0] if len(path) > 1 else "", keys[""])
        known = [key for section in sections for key in section.model_fields]
        near = difflib.get_close_matches(path[-1], known, n=1)
        message = "this key is not known" + (f"; did you mean {near[0]}?" if near else "")
    return f"{where}: {message}"
