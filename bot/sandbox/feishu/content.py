"""Judges the `content` of a message to be sent: text, post, or a card (feishu.md §4.2, §4.4, §5.1). Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from bot.sandbox.feishu.cardschema import CardRules, Json
from bot.sandbox.feishu.config import Limits
from bot.sandbox.feishu.errors import ApiError, CardError

_LOCALES = frozenset({
    "zh_cn", "en_us", "ja_jp", "zh_hk", "zh_tw", "id_id", "vi_vn", "th_th", "pt_br", "es_es", "ko_kr", "de_de",
    "fr_fr", "it_it", "ru_ru", "ms_my",
})  # fmt: skip
_POST_TAGS = frozenset({"text", "a", "at", "img", "media", "emotion", "hr", "code_block", "md"})
_NEEDED = {
    "image": "image_key", "file": "file_key", "audio": "file_key", "media": "file_key", "sticker": "file_key",
    "share_chat": "chat_id", "share_user": "user_id",
}  # fmt: skip


def parse_content(body: Json, limits: Limits) -> tuple[str, Json]:
    """(msg_type, content) of a send, reply or edit; sizes and shapes checked. Raises ApiError 230001 or 230025."""
    kind, text = body.get("msg_type"), body.get("content")
    if not isinstance(kind, str) or not isinstance(text, str):
        raise ApiError(230001, "msg_type and content must be strings")
    limit = limits.text_bytes if kind == "text" else limits.card_bytes
    if len(text.encode()) > limit:
        raise ApiError(230025)
    try:
        content = msgspec.json.decode(text)
    except msgspec.DecodeError:
        raise ApiError(230001, "content is not a string in json format") from None
    if not isinstance(content, dict):
        raise ApiError(230001, "content must be a JSON object")
    if kind == "text":
        if not isinstance(content.get("text"), str) or not content["text"]:
            raise ApiError(230001, "text is empty")
    elif kind == "post":
        _check_post(content)
    elif kind != "interactive" and not isinstance(content.get(_NEEDED.get(kind, "")), str):
        raise ApiError(230001, f"msg_type {kind} or its content")
    return kind, content


def _check_post(content: Json) -> None:
    if not content or content.keys() - _LOCALES:
        raise ApiError(230001, "a post has locales at its top level, without a wrapper")
    for inner in content.values():
        if not isinstance(inner, dict) or not isinstance(inner.get("content"), list):
            raise ApiError(230001, "post content must be a list of paragraphs")
        if not isinstance(inner.get("title", ""), str):
            raise ApiError(230001, "post title")
        for paragraph in inner["content"]:
            _check_paragraph(paragraph)


def _check_paragraph(paragraph: Any) -> None:
    if not isinstance(paragraph, list):
        raise ApiError(230001, "a paragraph is a list of nodes")
    for node in paragraph:
        if not isinstance(node, dict) or node.get("tag") not in _POST_TAGS:
            raise ApiError(230001, "unknown tag in post")
        if node["tag"] in {"text", "md"} and not isinstance(node.get("text"), str):
            raise ApiError(230001, "a text node needs text")
        if node["tag"] == "md" and len(paragraph) > 1:
            raise ApiError(230001, "md must be alone in its paragraph")
        if node["tag"] == "a" and not isinstance(node.get("href"), str):
            raise ApiError(230001, "a link needs href")


def raw_card(content: Json, rules: CardRules) -> Json:
    """A card given as JSON. Schema 2.0 is judged in full, 1.0 loosely, as the platform does. Raises ApiError."""
    if "schema" in content:
        try:
            rules.check(content)
        except CardError as error:
            raise error.wrapped() from None
        return content
    if not isinstance(content.get("elements", content.get("i18n_elements", [])), list | dict):
        raise CardError(200621, "elements").wrapped()
    return content
