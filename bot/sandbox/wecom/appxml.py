"""The XML of an app's callbacks (wecom.md §1.4). Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bot.sandbox.wecom.config import WeComConfig

Fields = dict[str, "str | int | float | Fields"]


def callback(config: WeComConfig, userid: str, fields: Fields) -> bytes:
    """A message or an event of one person."""
    head: Fields = {
        "ToUserName": config.corp_id,
        "FromUserName": userid,
        "CreateTime": int(config.clock()),
    }
    return f"<xml>{_inside({**head, **fields, 'AgentID': config.agent_id})}</xml>".encode()


def _inside(fields: Fields) -> str:
    parts = []
    for name, value in fields.items():
        if isinstance(value, dict):
            text = _inside(value)
        elif isinstance(value, str):
            text = "<![CDATA[" + value.replace("]]>", "]]]]><![CDATA[>") + "]]>"
        else:
            text = str(value)
        parts.append(f"<{name}>{text}</{name}>")
    return "".join(parts)
