"""The `[bots.*]` tables, one model per platform, and what all tables of the file share. Read through `bot.config`."""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

_LOOPBACK = {"127.0.0.1", "localhost", "::1"}
_WECOM_AES_KEY = re.compile(r"[A-Za-z0-9]{43}")
_WECOM_API = "https://qyapi.weixin.qq.com"
# Hosts of attachments are documented nowhere (wecom.md §2.2), so the list can be changed. A dot in front: any host below.
_WECOM_MEDIA_HOSTS = (".myqcloud.com", ".qpic.cn", ".weixin.qq.com")
# The same for DingTalk: it keeps files in its own cloud and in Aliyun's.
_DINGTALK_MEDIA_HOSTS = (".dingtalk.com", ".aliyuncs.com", ".alicdn.com")


def check_base_url(url: str, secure: str = "https", plain: str = "http") -> str:
    """An address that secrets may be sent to, without a slash at its end. Raises ValueError."""
    parts = urlsplit(url)
    if parts.scheme == secure and parts.hostname:
        return url.rstrip("/")
    if parts.scheme == plain and parts.hostname in _LOOPBACK:
        return url.rstrip("/")
    raise ValueError(f'"{url}" must be {secure}:// (plain {plain}:// is allowed on loopback only)')


class Section(BaseModel):
    """A table of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class FeishuBotConfig(Section):
    """[bots.*] with platform = "feishu"."""

    platform: Literal["feishu"]
    mode: Literal["webhook", "websocket"] = "webhook"
    app_id: str = Field(min_length=1)
    app_secret: SecretStr = Field(min_length=1)
    encrypt_key: SecretStr = SecretStr("")
    verification_token: SecretStr = SecretStr("")
    api_base: str = "https://open.feishu.cn"
    model: str = ""
    session: Literal["", "per_user", "shared", "per_topic"] = ""
    chats: dict[str, Literal["per_user", "shared", "per_topic"]] = {}
    answer_in_groups: Literal["mentioned", "all"] = "mentioned"
    update_interval_s: float = Field(1.5, ge=0.35, le=60)
    monthly_calls: int = Field(0, ge=0)
    table_limit: int = Field(3, ge=0, le=50)
    print_step: int = Field(4, ge=1, le=100)
    print_frequency_ms: int = Field(70, ge=10, le=1000)

    @field_validator("api_base")
    @classmethod
    def _base(cls, value: str) -> str:
        return check_base_url(value)

    @model_validator(mode="after")
    def _webhook_needs_keys(self) -> FeishuBotConfig:
        missing = [
            k
            for k in ("encrypt_key", "verification_token")
            if not getattr(self, k).get_secret_value()
        ]
        if self.mode == "webhook" and missing:
            raise ValueError(
                f'mode = "webhook" needs {" and ".join(missing)}: copy it from the Feishu console, '
                "Events & Callbacks → Encryption Strategy"
            )
        return self


class DingTalkBotConfig(Section):
    """[bots.*] with platform = "dingtalk"."""

    platform: Literal["dingtalk"]
    mode: Literal["stream", "webhook"] = "stream"
    client_id: str = Field(min_length=1)
    client_secret: SecretStr = Field(min_length=1)
    robot_code: str = ""
    robot_name: str = ""
    api_base: str = "https://api.dingtalk.com"
    oapi_base: str = "https://oapi.dingtalk.com"
    media_hosts: tuple[str, ...] = _DINGTALK_MEDIA_HOSTS
    signature_window_s: float = Field(300.0, ge=10, le=3600)
    card_template: str = ""
    card_content_key: str = Field("content", min_length=1)
    card_buttons_key: str = ""
    card_flow_status: bool = False
    card_callback_url: str = ""
    card_callback_secret: SecretStr = SecretStr("")
    documented: bool = False
    mention_asker: bool = True
    model: str = ""
    session: Literal["", "per_user", "shared", "per_topic"] = ""
    chats: dict[str, Literal["per_user", "shared", "per_topic"]] = {}
    answer_in_groups: Literal["mentioned"] = "mentioned"
    update_interval_s: float = Field(1.2, ge=1.0, le=60)
    monthly_calls: int = Field(5000, ge=0)
    stream_until: float = Field(0.8, ge=0, le=1)

    @property
    def app_id(self) -> str:
        """What names the app on its platform."""
        return self.client_id

    @field_validator("api_base", "oapi_base", "card_callback_url")
    @classmethod
    def _base(cls, value: str) -> str:
        return check_base_url(value) if value else value

    @model_validator(mode="after")
    def _bases_are_given(self) -> DingTalkBotConfig:
        if not self.api_base or not self.oapi_base:
            raise ValueError("api_base and oapi_base must not be empty")
        return self


def _check_wecom_key(value: SecretStr) -> SecretStr:
    key = value.get_secret_value()
    if key and not _WECOM_AES_KEY.fullmatch(key):
        raise ValueError("must be the 43 letters and digits that the WeCom console shows")
    return value


class WeComBotConfig(Section):
    """[bots.*] with platform = "wecom_bot": an AI bot, by callback or by long connection."""

    platform: Literal["wecom_bot"]
    mode: Literal["webhook", "websocket"] = "webhook"
    token: SecretStr = SecretStr("")
    encoding_aes_key: SecretStr = SecretStr("")
    bot_id: str = ""
    secret: SecretStr = SecretStr("")
    bot_name: str = ""
    api_base: str = _WECOM_API
    ws_url: str = "wss://openws.work.weixin.qq.com"
    media_hosts: tuple[str, ...] = _WECOM_MEDIA_HOSTS
    update_interval_s: float = Field(1.0, ge=0.5, le=60)
    stream_cutoff_s: float = Field(330.0, ge=5, le=570)
    push_bytes: int = Field(4096, ge=512, le=20_480)
    feedback: bool = True
    model: str = ""
    session: Literal["", "per_user", "shared", "per_topic"] = ""
    chats: dict[str, Literal["per_user", "shared", "per_topic"]] = {}
    answer_in_groups: Literal["mentioned"] = "mentioned"
    monthly_calls: int = Field(0, ge=0)

    @field_validator("api_base")
    @classmethod
    def _base(cls, value: str) -> str:
        return check_base_url(value)

    @field_validator("ws_url")
    @classmethod
    def _ws(cls, value: str) -> str:
        return check_base_url(value, "wss", "ws")

    @field_validator("encoding_aes_key")
    @classmethod
    def _aes_key(cls, value: SecretStr) -> SecretStr:
        return _check_wecom_key(value)

    @model_validator(mode="after")
    def _mode_needs_keys(self) -> WeComBotConfig:
        wanted = ("token", "encoding_aes_key") if self.mode == "webhook" else ("bot_id", "secret")
        missing = [
            key
            for key in wanted
            if not (
                str(value)
                if isinstance(value := getattr(self, key), str)
                else value.get_secret_value()
            )
        ]
        if missing:
            raise ValueError(
                f'mode = "{self.mode}" needs {" and ".join(missing)}: copy it from the WeCom console, '
                "the AI bot's page, API mode"
            )
        return self

    @property
    def app_id(self) -> str:
        """The bot's id; where it is not configured, a name made of the key, which is as lasting."""
        if self.bot_id:
            return self.bot_id
        key = self.encoding_aes_key.get_secret_value().encode()
        return f"wecom-{hashlib.sha256(key).hexdigest()[:16]}"


class WeComAppConfig(Section):
    """[bots.*] with platform = "wecom_app": a self-built app."""

    platform: Literal["wecom_app"]
    corp_id: str = Field(min_length=1)
    corp_secret: SecretStr
    agent_id: int = Field(ge=1)
    token: SecretStr
    encoding_aes_key: SecretStr
    api_base: str = _WECOM_API
    media_hosts: tuple[str, ...] = _WECOM_MEDIA_HOSTS
    message_format: Literal["text", "markdown"] = "text"
    messages_per_minute: int = Field(20, ge=1, le=28)
    model: str = ""
    session: Literal["", "per_user", "shared", "per_topic"] = ""
    chats: dict[str, Literal["per_user", "shared", "per_topic"]] = {}
    answer_in_groups: Literal["mentioned"] = "mentioned"
    monthly_calls: int = Field(0, ge=0)

    @field_validator("api_base")
    @classmethod
    def _base(cls, value: str) -> str:
        return check_base_url(value)

    @field_validator("encoding_aes_key")
    @classmethod
    def _aes_key(cls, value: SecretStr) -> SecretStr:
        return _check_wecom_key(value)

    @model_validator(mode="after")
    def _all_is_there(self) -> WeComAppConfig:
        missing = [
            key
            for key in ("corp_secret", "token", "encoding_aes_key")
            if not getattr(self, key).get_secret_value()
        ]
        if missing:
            raise ValueError(
                f"needs {' and '.join(missing)}: copy it from the WeCom console, the app's page"
            )
        return self

    @property
    def mode(self) -> Literal["webhook"]:
        """Apps have no long connection."""
        return "webhook"

    @property
    def app_id(self) -> str:
        """The company and the app in it."""
        return f"{self.corp_id}:{self.agent_id}"


# Other platforms join this union with their adapters.
BotConfig = Annotated[
    FeishuBotConfig | DingTalkBotConfig | WeComBotConfig | WeComAppConfig,
    Field(discriminator="platform"),
]
