"""Reads a broken `config.toml` as far as it can be read: every fault in one pass, and the rest of it for further checks."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from bot.config import KEYS_BY_SECTION, Config
from bot.config_faults import (
    details,
    expand,
    read_text,
    say_fault,
    with_backends,
    written_path,
)

# Each round takes away what was found wrong; faults that tables have together are seen once their own are gone.
_ROUNDS: Final = 8


@dataclass(frozen=True, slots=True)
class Survey:
    """`config` is what the file says where it is right, and the defaults elsewhere; `faults` one sentence each."""

    config: Config
    faults: tuple[str, ...]


def survey(path: Path) -> Survey:
    """Read a file. Raises nothing: a file that cannot be read at all is one fault, and all defaults."""
    folder = path.resolve().parent
    try:
        data = tomllib.loads(read_text(path))
    except OSError as error:
        return Survey(Config(folder=folder), (f"{path} cannot be read: {error.strerror}",))
    except UnicodeDecodeError:
        return Survey(Config(folder=folder), (f"{path} is not text in UTF-8; save it as UTF-8",))
    except tomllib.TOMLDecodeError as error:
        return Survey(Config(folder=folder), (f"{path} is not valid TOML: {error}",))
    unset: list[str] = []
    data = with_backends(expand(data, "", unset))
    config, faults = _validate(data, folder)
    places = tuple(fault.split(":", 1)[0] for fault in unset)
    # A variable that is not set is no fault of the value that stands for it.
    faults = [fault for fault in faults if not fault.startswith(tuple(f"{p}:" for p in places))]
    return Survey(config, (*unset, *faults))


def _validate(data: dict[str, Any], folder: Path) -> tuple[Config, list[str]]:
    faults: list[str] = []
    places: list[str] = []
    for _ in range(_ROUNDS):
        try:
            return Config.model_validate({**data, "folder": folder}), faults
        except ValidationError as error:
            before = tuple(places)
            for fault in details(error):
                if not _is_consequence(fault, before):
                    faults.append(say_fault(fault, KEYS_BY_SECTION))
                places.append(".".join(written_path(fault)))
                _take_away(data, written_path(fault), before)
    return Config(folder=folder), faults


def _is_consequence(fault: ErrorDetails, before: tuple[str, ...]) -> bool:
    """Whether it is there only because something wrong was taken away in an earlier round."""
    place = ".".join(written_path(fault))
    if place:
        return any(f"{earlier}.".startswith(f"{place}.") for earlier in before)
    tables = (earlier.split(".")[1] for earlier in before if "." in earlier)
    return any(f'"{table}"' in fault["msg"] for table in tables)


def _take_away(data: dict[str, Any], path: list[str], before: tuple[str, ...]) -> None:
    if not path:
        _take_names_away(data)
        return
    if ".".join(path) in before:  # its key is gone already: the table cannot be without it
        path = path[:-1]
    table: Any = data
    for n, key in enumerate(path[:-1]):
        # A key that is missing cannot be taken away, nor one item of a list: then its table or list goes.
        if not isinstance(table.get(key), dict) or _lacks(table[key], path[n + 1 :]):
            table.pop(key, None)
            return
        table = table[key]
    table.pop(path[-1], None)


def _lacks(table: dict[str, Any], path: list[str]) -> bool:
    return len(path) == 1 and path[0] not in table


def _take_names_away(data: dict[str, Any]) -> None:
    """What tables say of each other: names of models and bots; where there are none, ids that two bots have."""
    chat, bots = data.get("chat", {}), data.get("bots", {})
    named = [chat.pop(key, None) for key in ("model", "listen")]
    named += [bot.pop("model", None) for bot in bots.values()]
    if not any(named):
        data.pop("bots", None)
