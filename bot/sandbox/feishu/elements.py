"""Changes of single components inside a card's JSON: add, replace, patch, delete. Pure; works on the dict it is given.

The caller hands in a copy and keeps it only when everything succeeded (feishu.md §5.1, call 5).
"""

from __future__ import annotations

from typing import Any

from bot.sandbox.feishu.cardfields import CONTAINERS
from bot.sandbox.feishu.cardschema import Json, tagged
from bot.sandbox.feishu.errors import ApiError, CardError


def add(card: Json, how: str, target_id: str, elements: list[Any]) -> None:
    """insert_before, insert_after or append. Raises CardError 300315."""
    if how == "append":
        _append(card, target_id, elements)
        return
    if how not in {"insert_before", "insert_after"} or not target_id:
        raise CardError(300315, "type and target_element_id")
    siblings, index = _place(card, target_id, 300315)
    at = index if how == "insert_before" else index + 1
    siblings[at:at] = elements


def replace(card: Json, element_id: str, element: Any) -> None:
    """Another component in its place. Raises CardError 300121."""
    if not isinstance(element, dict):
        raise CardError(300121, "element must be an object")
    siblings, index = _place(card, element_id, 300121)
    siblings[index] = {"element_id": element_id, **element}


def patch(card: Json, element_id: str, partial: Any) -> Json:
    """Some properties, never the tag. Raises CardError 300312 or 300313."""
    if not isinstance(partial, dict) or not partial:
        raise CardError(300313, "partial_element must be an object")
    found = find(card, element_id)
    if found is None:
        raise CardError(300313, element_id)
    if "tag" in partial and partial["tag"] != found["tag"]:
        raise CardError(300312)
    found.update(partial)
    return found


def delete(card: Json, element_id: str) -> None:
    """It and what is in it. Raises CardError 300314."""
    siblings, index = _place(card, element_id, 300314)
    del siblings[index]


def find(card: Json, element_id: str) -> Json | None:
    """The component with this id."""
    return next(
        (item for item in tagged(card.get("body", {})) if item.get("element_id") == element_id),
        None,
    )


def _append(card: Json, target_id: str, elements: list[Any]) -> None:
    if not target_id:
        card["body"]["elements"].extend(elements)
        return
    container = find(card, target_id)
    if container is None or container["tag"] not in CONTAINERS:
        raise CardError(300315, f"{target_id} is not a container")
    container.setdefault("columns" if container["tag"] == "column_set" else "elements", []).extend(
        elements
    )


def _place(card: Json, element_id: str, code: int) -> tuple[list[Any], int]:
    for siblings in _lists(card.get("body", {})):
        for index, item in enumerate(siblings):
            if isinstance(item, dict) and item.get("element_id") == element_id:
                return siblings, index
    raise CardError(code, f"no element {element_id}")


def _lists(node: Any) -> list[list[Any]]:
    found: list[list[Any]] = []
    if isinstance(node, dict):
        for key in ("elements", "columns"):
            children = node.get(key)
            if isinstance(children, list):
                found.append(children)
                for child in children:
                    found.extend(_lists(child))
    return found


def need(body: Json, name: str, kind: type, code: int = 10002) -> Any:
    """A field of a request body. Raises ApiError when it is missing or of another type."""
    value = body.get(name)
    if not isinstance(value, kind) or isinstance(value, bool) or value == "":
        raise ApiError(code, name)
    return value
