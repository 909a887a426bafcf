"""What people can write, as the bot is told and as people read it. Owns the bytes of files, for later quotes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from bot.sandbox.wecom import events

if TYPE_CHECKING:
    from bot.sandbox.wecom.appxml import Fields
    from bot.sandbox.wecom.config import WeComConfig
    from bot.sandbox.wecom.media import Media
    from bot.sandbox.wecom.world import Message

Json = dict[str, Any]
_PASTE_CHARS = 4000


class SayOptions(TypedDict, total=False):
    """The rarer ways of writing.

    `kind`: text (default), mixed, voice, image, file, video. `data` and `filename`: the file's. `items`: a mixed message's
    parts, text and image bytes. `quote`: the message that is quoted. `deliver`: deliver it or not, whatever the rules say.
    """

    kind: str
    data: bytes
    filename: str
    items: Sequence[str | bytes]
    quote: Message
    deliver: bool


class Composer:
    """Fills a new message."""

    def __init__(self, config: WeComConfig, media: Media) -> None:
        self._config = config
        self._media = media
        self._files: dict[str, tuple[bytes, str]] = {}

    def compose(
        self, message: Message, text: str, options: SayOptions, *, mention_bot: bool
    ) -> None:
        """The payload of an AI bot's callback, and what people read."""
        name = f"@{self._config.bot_name}"
        if message.chat.kind == "group" and mention_bot and name not in text:
            text = f"{name} {text}"
        kind, data = message.kind, options.get("data", b"")
        message.text = text
        match kind:
            case "text" | "voice":
                payload: Json = {"content": text}
            case "mixed":
                payload = {"msg_item": [self._item(part) for part in self._parts(text, options)]}
                message.text = " ".join(
                    part if isinstance(part, str) else "[image]"
                    for part in self._parts(text, options)
                )
            case "image" | "file" | "video":
                payload = self._media.publish(data, options.get("filename", ""), kind)
                self._files[message.id] = (data, options.get("filename", ""))
                message.text = f"[{kind}] {options.get('filename', '')}".strip()
            case _:
                raise ValueError(f"people cannot write {kind}")
        message.data = {kind: payload}

    def quote(self, quoted: Message) -> Json:
        """A quoted file comes with a URL of its own, good for five minutes again."""
        if quoted.id in self._files:
            data, name = self._files[quoted.id]
            return {
                "msgtype": quoted.kind,
                quoted.kind: self._media.publish(data, name, quoted.kind),
            }
        return events.quote(quoted)

    def _parts(self, text: str, options: SayOptions) -> list[str | bytes]:
        """In a group the first text carries the mention, wherever it stands."""
        items = list(options.get("items", ()))
        mention = f"@{self._config.bot_name}"
        at = next((i for i, part in enumerate(items) if isinstance(part, str)), None)
        if text.startswith(mention) and at is not None:
            items[at] = f"{mention} {items[at]!s}"
        return items

    def _item(self, part: str | bytes) -> Json:
        if isinstance(part, str):
            return {"msgtype": "text", "text": {"content": part}}
        return {"msgtype": "image", "image": self._media.publish(part, "", "image")}

    def compose_for_app(self, message: Message, text: str, options: SayOptions) -> None:
        """The fields of an app's callback; an app gets media ids and no transcript."""
        kind, name = message.kind, options.get("filename", "")
        message.text = text
        if kind == "text":
            message.data = {"Content": text}
            return
        if kind not in {"image", "voice", "video", "file"}:
            raise ValueError(f"people cannot write {kind} to an app")
        media_id = self._media.keep(options.get("data", b""), name, kind)
        message.text = f"[{kind}] {name}".strip()
        extra: dict[str, Fields] = {
            "image": {"PicUrl": f"http://p.example/{media_id[:8]}"},
            "voice": {"Format": "amr"},
            "video": {"ThumbMediaId": media_id},
            "file": {"FileName": name},
        }
        message.data = {**extra[kind], "MediaId": media_id}


def pasted(text: str) -> list[str]:
    """How a client cuts a long paste (wecom.md §2.2)."""
    return [text[i : i + _PASTE_CHARS] for i in range(0, len(text), _PASTE_CHARS)]
