"""Template cards: what a card must look like and which buttons it has (wecom.md §2.9). Owns the task ids that are taken."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from bot.sandbox.wecom import errors
from bot.sandbox.wecom.errors import ApiError

if TYPE_CHECKING:
    from bot.sandbox.wecom.judge import Judge

Json = dict[str, Any]
CARD_TYPES = frozenset(
    {"text_notice", "news_notice", "button_interaction", "vote_interaction", "multiple_interaction"}
)
_NOTICES = frozenset({"text_notice", "news_notice"})
_TASK_ID = re.compile(r"^[0-9A-Za-z_@-]{1,128}$")
_KEY_BYTES = 1024
_MOST = {"button_list": 6, "horizontal_content_list": 6, "jump_list": 3, "select_list": 3}
_MOST_OPTIONS = {"select_list": 10, "checkbox": 20}
_MENU = (1, 3)
_ADVISED = {"title": 26, "sub_title_text": 112}


class Cards:
    """Judges cards."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._task_ids: set[str] = set()

    def check(self, card: Any, where: str, *, update_of: str = "") -> Json:
        """The card, when it is one. Raises ApiError and notes `card_malformed` else. `update_of`: the task id it must keep."""
        problem = _problem(card)
        if not problem and update_of and card.get("task_id") != update_of:
            problem = f"task_id is not {update_of}"
        if (
            not problem
            and not update_of
            and card.get("task_id")
            and card["task_id"] in self._task_ids
        ):
            problem = f"task_id {card['task_id']} was used before"
        if problem:
            self._judge.note("card_malformed", f"{where}: {problem}")
            raise ApiError(errors.BAD_PARAMETER, problem)
        if card.get("task_id"):
            self._task_ids.add(card["task_id"])
        title = card.get("main_title") or {}
        if (
            len(str(title.get("title", ""))) > _ADVISED["title"]
            or len(str(card.get("sub_title_text", ""))) > _ADVISED["sub_title_text"]
        ):
            self._judge.note("card_text_cut", where)
        return dict(card)


def _problem(card: Any) -> str:
    if not isinstance(card, dict) or card.get("card_type") not in CARD_TYPES:
        return "card_type is not one of the five"
    for name, most in _MOST.items():
        value = card.get(name, [])
        if not isinstance(value, list) or len(value) > most:
            return f"{name} has more than {most} entries"
    if "task_id" in card and not _TASK_ID.match(str(card["task_id"])):
        return "task_id must be 1 to 128 of 0-9 A-Z a-z _ - @"
    return _problem_of_kind(card) or _problem_of_parts(card)


def _problem_of_kind(card: Json) -> str:
    kind = card["card_type"]
    if kind in _NOTICES:
        if not isinstance(card.get("card_action"), dict):
            return f"{kind} needs card_action"
        if not (card.get("main_title") or {}).get("title") and not card.get("sub_title_text"):
            return f"{kind} needs a title or sub_title_text"
        return ""
    if not card.get("task_id"):
        return f"{kind} needs task_id"
    if kind == "button_interaction" and not card.get("button_list"):
        return "button_interaction needs button_list"
    if kind in {"vote_interaction", "multiple_interaction"} and not isinstance(
        card.get("submit_button"), dict
    ):
        return f"{kind} needs submit_button"
    return ""


def _problem_of_parts(card: Json) -> str:
    menu = card.get("action_menu")
    if menu is not None and not _MENU[0] <= len(menu.get("action_list", [])) <= _MENU[1]:
        return "action_menu needs 1 to 3 actions"
    if menu is not None and not card.get("task_id"):
        return "action_menu needs task_id"
    for key, label in buttons(card):
        if not key or len(key.encode()) > _KEY_BYTES or not label:
            return "a button needs text and a key of at most 1024 bytes"
    for select in card.get("select_list", []):
        if not 1 <= len(select.get("option_list", [])) <= _MOST_OPTIONS["select_list"]:
            return "a select needs 1 to 10 options"
    checkbox = card.get("checkbox")
    if (
        checkbox is not None
        and not 1 <= len(checkbox.get("option_list", [])) <= _MOST_OPTIONS["checkbox"]
    ):
        return "a checkbox needs 1 to 20 options"
    return ""


def buttons(card: Json) -> Iterator[tuple[str, str]]:
    """(key, label) of everything that calls back; a button of type 1 opens a URL instead."""
    for button in card.get("button_list", []):
        if button.get("type", 0) == 0:
            yield str(button.get("key", "")), str(button.get("text", ""))
    for action in (card.get("action_menu") or {}).get("action_list", []):
        yield str(action.get("key", "")), str(action.get("text", ""))
    submit = card.get("submit_button")
    if isinstance(submit, dict):
        yield str(submit.get("key", "")), str(submit.get("text", ""))


def card_text(card: Json) -> str:
    """The words on a card, without its buttons."""
    title = card.get("main_title") or {}
    parts = [title.get("title"), title.get("desc"), card.get("sub_title_text")]
    return "\n".join(str(part) for part in parts if part)
