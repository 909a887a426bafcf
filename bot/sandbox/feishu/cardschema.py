"""Judges a card of schema 2.0: fields, element ids, counts, size, tables, mentions, images. Pure; raises CardError.

Sources: feishu.md §4.6, §5.1–5.3, §5.6 and the docs cited there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from bot.sandbox.feishu import cardfields, markdown
from bot.sandbox.feishu.config import Limits
from bot.sandbox.feishu.errors import CardError, card_create_error

Json = dict[str, Any]
_ELEMENT_ID = re.compile(r"^[A-Za-z][A-Za-z0-9_]{0,19}$")
_TEXT_TAGS = frozenset({"markdown", "plain_text", "lark_md"})


def tagged(node: Any) -> Iterator[Json]:
    """Every component inside `node`, itself included, in reading order. What a button sends back is not looked into."""
    if isinstance(node, dict):
        if isinstance(node.get("tag"), str):
            yield node
        for key, value in node.items():
            if key not in {"behaviors", "value"} and isinstance(value, dict | list):
                yield from tagged(value)
    elif isinstance(node, list):
        for item in node:
            yield from tagged(item)


def json_bytes(card: Json) -> int:
    """Size as the platform counts it: UTF-8 JSON."""
    return len(msgspec.json.encode(card))


class CardRules:
    """The rules of one sandbox. Stateless."""

    def __init__(self, limits: Limits, knows_user: Callable[[str], bool], *, strict: bool) -> None:
        self._limits = limits
        self._knows_user = knows_user
        self._strict = strict

    def check(self, card: Any) -> None:
        """A whole card of schema 2.0. Raises CardError."""
        if not isinstance(card, dict) or not card:
            raise CardError(300307)
        if card.get("schema") != "2.0":
            raise CardError(300303)
        self._fields(card, cardfields.TOP, "card")
        self.check_config(card.get("config", {}))
        self._header(card.get("header"))
        body = card.get("body")
        if not isinstance(body, dict) or not isinstance(body.get("elements"), list):
            raise CardError(200621, "body.elements must be a list")
        self._fields(body, cardfields.BODY, "body")
        for element in body["elements"]:
            self.check_component(element)
        self.check_whole(card)

    def check_whole(self, card: Json) -> None:
        """What can only be judged on the whole card: ids, counts, tables, size."""
        components = list(tagged(card))
        ids = [item["element_id"] for item in components if item.get("element_id")]
        for element_id in ids:
            if not isinstance(element_id, str) or not _ELEMENT_ID.match(element_id):
                raise CardError(
                    300301,
                    f"element_id {element_id!r} is not letter, then letters, digits or _, ≤ 20",
                )
        if len(set(ids)) != len(ids):
            raise CardError(300301)
        if len(components) > self._limits.elements:
            raise CardError(300305, f"{len(components)}")
        self.check_tables(card, components)
        self.check_size(card)

    def check_size(self, card: Json) -> None:
        """≤ 30 KB (200860)."""
        size = json_bytes(card)
        if size > self._limits.card_bytes:
            raise CardError(200860, f"{size} bytes")

    def check_tables(self, card: Json, components: list[Json] | None = None) -> None:
        """At most N tables in a card and 4 in one markdown component (230099 / 11310)."""
        total = 0
        for item in components if components is not None else tagged(card):
            if item["tag"] == "table":
                total += 1
            elif item["tag"] == "markdown":
                here = markdown.count_tables(str(item.get("content", "")))
                total += here
                if here > self._limits.tables_per_markdown:
                    raise card_create_error(11310, "markdown table number over limit")
        if total > self._limits.tables_per_card:
            raise card_create_error(11310, "card table number over limit")

    def check_text(self, tag: str, text: str) -> None:
        """Mentions must be of real people (230099 / 100290), images must be image keys (200570)."""
        if tag == "plain_text" or ("<" not in text and "![" not in text):
            return
        for people in markdown.people_tags(markdown.split_code(text)[0]):
            for any_id in people.ids or ("",):
                if any_id != "all" and not self._knows_user(any_id):
                    raise card_create_error(
                        100290,
                        f"There is an invalid user resource(at/person) in your card; ErrorValue: {any_id}",
                    )
        image = markdown.bad_image(text)
        if image is not None:
            raise CardError(200570, image)

    def check_component(self, item: Any) -> None:
        """One component and everything in it."""
        if not isinstance(item, dict) or not isinstance(item.get("tag"), str):
            raise CardError(200621, "a component needs a tag")
        tag = item["tag"]
        if tag not in cardfields.COMPONENTS:
            raise CardError(200861, tag)
        known = cardfields.COMPONENTS[tag]
        if known is None:
            return
        self._fields(item, known, tag)
        for name in cardfields.NEEDED.get(tag, ()):
            if name not in item:
                raise CardError(200621, f"{tag} needs {name}")
        if tag in _TEXT_TAGS:
            if not isinstance(item["content"], str):
                raise CardError(200621, f"{tag}.content must be a string")
            self.check_text(tag, item["content"])
        elif tag == "button":
            self._button(item)
        elif tag in {"img", "custom_icon"} and not markdown.is_image_key(
            str(item.get("img_key", ""))
        ):
            raise CardError(200570, str(item.get("img_key", "")))
        self._children(item)

    def check_config(self, config: Any) -> None:
        """`config` of a card or of a settings call."""
        self._fields(config, cardfields.CONFIG, "config")
        if config.get("update_multi", True) is not True:
            raise CardError(300302)
        if not isinstance(config.get("streaming_mode", False), bool):
            raise CardError(200621, "config.streaming_mode must be a boolean")
        if "summary" in config:
            self._fields(config["summary"], cardfields.SUMMARY, "config.summary")
            if not isinstance(config["summary"].get("content", ""), str):
                raise CardError(200621, "config.summary.content must be a string")
        if "streaming_config" in config:
            self._streaming_config(config["streaming_config"])

    def _streaming_config(self, value: Any) -> None:
        self._fields(value, cardfields.STREAMING_CONFIG, "config.streaming_config")
        for name in ("print_frequency_ms", "print_step"):
            per_client = value.get(name, {})
            self._fields(per_client, cardfields.CLIENTS, name)
            if not all(isinstance(number, int) and number > 0 for number in per_client.values()):
                raise CardError(200621, f"{name} must be positive whole numbers")
        if value.get("print_strategy", "fast") not in cardfields.STRATEGIES:
            raise CardError(200621, "print_strategy")

    def _header(self, header: Any) -> None:
        if header is None:
            return
        self._fields(header, cardfields.HEADER, "header")
        for name in ("title", "subtitle", "icon"):
            if name in header:
                self.check_component(header[name])
        for item in header.get("text_tag_list", []):
            self.check_component(item)

    def _button(self, item: Json) -> None:
        text = item.get("text")
        if text is not None and (not isinstance(text, dict) or text.get("tag") != "plain_text"):
            raise CardError(200621, "button.text must be plain_text")
        if item.get("type", "default") not in cardfields.BUTTON_TYPES:
            raise CardError(200621, "button.type")
        behaviors = item.get("behaviors", [])
        if not isinstance(behaviors, list):
            raise CardError(200621, "button.behaviors must be a list")
        for behavior in behaviors:
            if not isinstance(behavior, dict) or behavior.get("type") not in cardfields.BEHAVIORS:
                raise CardError(200621, "button.behaviors[].type")
            if behavior["type"] == "callback" and not isinstance(behavior.get("value"), dict | str):
                raise CardError(200621, "a callback needs a value")

    def _children(self, item: Json) -> None:
        for name in ("text", "icon", "alt", "hover_tips", "disabled_tips"):
            if isinstance(item.get(name), dict):
                self.check_component(item[name])
        for name in ("elements", "columns") if item["tag"] in cardfields.CONTAINERS else ():
            children = item.get(name, [])
            if not isinstance(children, list):
                raise CardError(200621, f"{item['tag']}.{name} must be a list")
            for child in children:
                self.check_component(child)

    def _fields(self, value: Any, known: frozenset[str], where: str) -> None:
        if not isinstance(value, dict):
            raise CardError(200621, f"{where} must be an object")
        unknown = value.keys() - known
        if unknown and self._strict:
            raise CardError(200621, f"unknown property {min(unknown)} in {where}")
