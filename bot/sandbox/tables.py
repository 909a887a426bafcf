"""The [bots.*] table of a bot whose platform is a sandbox: in one place for the demo, the proofs and the tests. Pure."""

from __future__ import annotations

from typing import Any, Literal

from bot.sandbox import dingtalk, wecom
from bot.sandbox.feishu import SandboxConfig

Table = dict[str, Any]


def feishu_table(
    config: SandboxConfig, base: str, mode: Literal["webhook", "websocket"] = "webhook"
) -> Table:
    """A Feishu app at the address `base`."""
    table: Table = {
        "platform": "feishu",
        "mode": mode,
        "app_id": config.app_id,
        "app_secret": config.app_secret,
        "api_base": base,
    }
    if mode == "webhook":
        table["encrypt_key"] = config.encrypt_key
        table["verification_token"] = config.verification_token
    return table


def dingtalk_table(
    config: dingtalk.SandboxConfig, base: str, mode: Literal["stream", "webhook"] = "stream"
) -> Table:
    """A DingTalk robot without a card template."""
    return {
        "platform": "dingtalk",
        "mode": mode,
        "client_id": config.client_id,
        "client_secret": config.client_secret,
        "api_base": base,
        "oapi_base": base,
    }


def wecom_table(config: wecom.WeComConfig, base: str) -> Table:
    """An AI bot or a self-built app, by the config's mode."""
    if config.mode == "app":
        return {
            "platform": "wecom_app",
            "corp_id": config.corp_id,
            "corp_secret": config.corp_secret,
            "agent_id": config.agent_id,
            "token": config.token,
            "encoding_aes_key": config.encoding_aes_key,
            "api_base": base,
        }
    table: Table = {
        "platform": "wecom_bot",
        "bot_id": config.bot_id,
        "bot_name": config.bot_name,
        "api_base": base,
    }
    if config.mode == "websocket":
        socket = base.replace("http://", "ws://") + "/openws"
        return table | {"mode": "websocket", "secret": config.bot_secret, "ws_url": socket}
    return table | {"token": config.token, "encoding_aes_key": config.encoding_aes_key}
