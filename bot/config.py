"""`config.toml` as pydantic models: unknown keys are refused, secrets are hidden, every fault is one line.

`load_config` is the only reader. Strings may be "${ENV_NAME}". Relative paths are relative to the config file's folder.
Every key stands, commented, in `config.example.toml`; tests/unit/bot/test_config.py keeps the two together.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)

from bot.config_bots import (
    BotConfig,
    DingTalkBotConfig,
    FeishuBotConfig,
    Section,
    WeComAppConfig,
    WeComBotConfig,
)
from bot.config_faults import expand, read_text, say_faults, with_backends
from bot.config_hub import ModelsHubConfig
from bot.config_machine import WatchConfig
from bot.config_sizes import SizesConfig
from bot.errors import ConfigError
from engine.errors import EngineConfigError
from engine.rpc.endpoints import parse_endpoint

__all__ = [
    "KEYS_BY_SECTION", "AccessConfig", "BaseModel", "BotConfig", "ChatConfig", "Config", "DingTalkBotConfig",
    "FeishuBotConfig", "LlamaModelConfig", "LogConfig", "ModelConfig", "OpenAIModelConfig", "SamplingConfig",
    "ServerConfig", "StorageConfig", "WeComAppConfig", "WeComBotConfig", "load_config", "parse_bytes", "parse_config",
]  # fmt: skip

_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB|TiB|KB|MB|GB|TB)?\s*$", re.IGNORECASE)
_UNITS = {
    "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
}  # fmt: skip
# As many fit between admins and everybody else (engine.types.Priority).
MAX_TIERS = 9


def parse_bytes(text: str | int) -> int:
    """Bytes of "12GiB", "512 MiB", "1.5GB" or a plain number. Raises ValueError."""
    if isinstance(text, int):
        return text
    match = _SIZE.match(text)
    if not match:
        raise ValueError(f'"{text}" is not a size; write for example "2GiB" or "512MiB"')
    return int(float(match[1]) * _UNITS[(match[2] or "B").lower()])


class ServerConfig(Section):
    """[server]"""

    host: str = "127.0.0.1"
    port: int = Field(8080, ge=0, le=65535)
    public_url: str = ""
    api_keys: tuple[SecretStr, ...] = ()
    interactive_api_keys: tuple[SecretStr, ...] = ()
    max_body_bytes: int = Field(1_048_576, ge=65_536, le=33_554_432)
    shutdown_s: float = Field(20.0, ge=0, le=600)


class StorageConfig(Section):
    """[storage]"""

    url: SecretStr = SecretStr("sqlite:///data/hearth.db")
    dedupe_hours: float = Field(24.0, ge=8.0)
    backups: int = Field(3, ge=0, le=100)
    retention_days: int = Field(0, ge=0, le=36_500)


class LogConfig(Section):
    """[log]"""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "console", "json"] = "auto"


class SamplingConfig(Section):
    """[models.*.sampling]"""

    temperature: float = Field(0.7, ge=0, le=5)
    top_p: float = Field(0.95, ge=0, le=1)
    top_k: int = Field(40, ge=0)
    min_p: float = Field(0.05, ge=0, le=1)
    repeat_penalty: float = Field(1.05, ge=0, le=3)
    repeat_last_n: int = Field(64, ge=-1)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    seed: int | None = None


class LlamaModelConfig(SizesConfig):
    """[models.*] with backend = "llama.cpp" (a local model in a child process) or "fake" (scripted, for tests)."""

    backend: Literal["llama.cpp", "fake"] = "llama.cpp"
    path: str = "demo"
    sha256: str | tuple[str, ...] = ""
    rpc: tuple[str, ...] = ()
    kv_ram: str = "2GiB"
    kv_disk: str = "8GiB"
    kv_dir: str = "data/kv"
    n_threads: int = Field(0, ge=0)
    flash_attention: Literal["auto", "on", "off"] = "auto"
    speculation: bool = True
    max_waiting: int = Field(1000, ge=1)
    max_waiting_per_person: int = Field(16, ge=1)
    stop: tuple[str, ...] = ()
    sampling: SamplingConfig = SamplingConfig()
    fake: dict[str, str] = Field(default_factory=dict)

    @field_validator("kv_ram", "kv_disk")
    @classmethod
    def _sizes(cls, value: str) -> str:
        parse_bytes(value)
        return value

    @field_validator("rpc")
    @classmethod
    def _workers(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for entry in value:
            try:
                parse_endpoint(entry, "rpc")
            except EngineConfigError as error:
                raise ValueError(str(error)) from None
        return value

    @field_validator("sha256")
    @classmethod
    def _checksums(cls, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        for text in (value,) if isinstance(value, str) else value:
            if text and not _SHA256.fullmatch(text):
                raise ValueError("a SHA-256 has 64 digits 0-9 a-f; one for each part of the model")
        return value


class OpenAIModelConfig(Section):
    """[models.*] with backend = "openai": any OpenAI-compatible server."""

    backend: Literal["openai"]
    base_url: str
    model: str
    n_ctx: int = Field(ge=256)
    api_key: SecretStr = SecretStr("")
    n_parallel: int = Field(4, ge=1, le=256)
    timeout_s: float = Field(600.0, gt=0)
    max_waiting: int = Field(1000, ge=1)
    max_waiting_per_person: int = Field(16, ge=1)
    stop: tuple[str, ...] = ()
    sampling: SamplingConfig = SamplingConfig()

    @field_validator("base_url")
    @classmethod
    def _base(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(
                f'"{value}" is not an http(s) URL, for example "http://127.0.0.1:8000/v1"'
            )
        return value.rstrip("/")


ModelConfig = Annotated[LlamaModelConfig | OpenAIModelConfig, Field(discriminator="backend")]


class ChatConfig(Section):
    """[chat]"""

    model: str = "default"
    session: Literal["per_user", "shared", "per_topic"] = "per_user"
    while_busy: Literal["merge", "queue", "interrupt"] = "merge"
    system_prompt: str = "You are a helpful assistant in a group chat. Answer plainly and briefly."
    max_new_tokens: int = Field(512, ge=1, le=65_536)
    language: Literal["zh", "en"] = "zh"
    timezone: str = "Asia/Shanghai"
    show_date: bool = True
    greeting: bool = True
    max_question_chars: int = Field(200_000, ge=1)
    max_wait_s: float = Field(1800.0, ge=0)
    paste_window_s: float = Field(1.5, ge=0, le=10)
    listen: tuple[str, ...] = ()
    listen_messages: int = Field(100, ge=1, le=1000)
    listen_hours: float = Field(24.0, gt=0, le=720)

    @field_validator("listen")
    @classmethod
    def _groups(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for entry in value:
            bot, colon, chat = entry.partition(":")
            if not (bot and colon and chat):
                raise ValueError(
                    f'"{entry}" must be "<bot name here>:<chat id>", for example "feishu:oc_123", or "feishu:*" for all its groups'
                )
        return value


class SummarizerConfig(Section):
    """[summarizer]: when older turns are put into a summary. Shares are of the window without the reply's reserve.

    Above `high` the oldest turns are compressed until `low` is reached; the last 6 messages stay as they are while all
    together stays under `keep`. `model` names another [models.*] table; "" = the chat's own. `prompt` replaces ours.
    """

    enabled: bool = True
    model: str = ""
    high: float = Field(0.60, gt=0.1, lt=1)
    low: float = Field(0.35, gt=0.05, lt=1)
    keep: float = Field(0.50, gt=0.05, lt=1)
    share: float = Field(0.15, gt=0.02, lt=0.5)
    prompt: str = ""

    @model_validator(mode="after")
    def _order(self) -> SummarizerConfig:
        if not self.low <= self.keep <= self.high:
            raise ValueError(
                "low, keep and high must rise in this order, for example 0.35, 0.50, 0.60"
            )
        return self


class RecallConfig(Section):
    """[recall]: old turns that bear on a question are quoted beside it.

    `max_share` of the window at most, and only what the question leaves free. `min_score`: below it nothing is quoted
    (0 = whatever is found; about 1 = the question's own words).
    """

    enabled: bool = True
    max_share: float = Field(0.15, gt=0, le=0.5)
    max_quotes: int = Field(4, ge=1, le=16)
    min_score: float = Field(0.10, ge=0, le=2)


class DocumentsConfig(Section):
    """[documents]: files that people send are read. `max_share` of the window is what their text may take in a prompt."""

    enabled: bool = True
    max_bytes: str = "10MiB"
    max_share: float = Field(0.5, gt=0, le=0.8)

    @field_validator("max_bytes")
    @classmethod
    def _size(cls, value: str) -> str:
        if not 1 <= parse_bytes(value) <= 100 * 2**20:
            raise ValueError("must be between 1 byte and 100MiB")
        return value


def _check_people(entries: tuple[str, ...]) -> tuple[str, ...]:
    for entry in entries:
        if ":" not in entry:
            raise ValueError(
                f'"{entry}" must be "<bot name here>:<user id>", for example "feishu:ou_123"'
            )
    return entries


class AccessConfig(Section):
    """[access]: people are written "<bot name here>:<user id>", `*` for every bot or every user.

    `tiers`: lists of people who are served before everybody else but admins, the first list first.
    """

    admins: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    tiers: tuple[tuple[str, ...], ...] = ()
    per_user_per_minute: int = Field(10, ge=0)
    per_user_per_day: int = Field(0, ge=0)

    @field_validator("admins", "allow", "deny")
    @classmethod
    def _people(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return _check_people(value)

    @field_validator("tiers", mode="before")
    @classmethod
    def _are_lists(cls, value: Any) -> Any:
        if isinstance(value, list) and any(isinstance(entry, str) for entry in value):
            raise ValueError(
                'is a list of lists, for example [["feishu:ou_boss"], ["feishu:ou_1", "feishu:ou_2"]]'
            )
        return value

    @field_validator("tiers")
    @classmethod
    def _tiers(cls, value: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], ...]:
        if len(value) > MAX_TIERS:
            raise ValueError(f"at most {MAX_TIERS} lists can be told apart, not {len(value)}")
        seen: set[str] = set()
        for entry in (entry for tier in value for entry in _check_people(tier)):
            if entry in seen:
                raise ValueError(
                    f'"{entry}" stands in it twice; whom the first list names, no later one can'
                )
            seen.add(entry)
        return value


def _demo_model() -> dict[str, ModelConfig]:
    return {"main": LlamaModelConfig()}


class Config(Section):
    """The whole file."""

    server: ServerConfig = ServerConfig()
    storage: StorageConfig = StorageConfig()
    log: LogConfig = LogConfig()
    models: dict[str, ModelConfig] = Field(default_factory=_demo_model)
    models_hub: ModelsHubConfig = ModelsHubConfig()
    chat: ChatConfig = ChatConfig()
    summarizer: SummarizerConfig = SummarizerConfig()
    recall: RecallConfig = RecallConfig()
    documents: DocumentsConfig = DocumentsConfig()
    access: AccessConfig = AccessConfig()
    watch: WatchConfig = WatchConfig()
    bots: dict[str, BotConfig] = Field(default_factory=dict)
    # The folder of the config file: what relative paths in it are relative to.
    folder: Path = Field(default=Path(), exclude=True)

    @field_validator("models")
    @classmethod
    def _some_model(cls, value: dict[str, ModelConfig]) -> dict[str, ModelConfig]:
        if not value:
            raise ValueError("at least one [models.<name>] table is needed")
        if "default" in value:
            raise ValueError(
                'a model cannot be called "default": that name means the first model (or chat.model)'
            )
        return value

    @model_validator(mode="after")
    def _names_exist(self) -> Config:
        for where, name in [
            ("chat.model", self.chat.model),
            *((f"bots.{k}.model", b.model) for k, b in self.bots.items()),
        ]:
            if name not in {"", "default", *self.models}:
                raise ValueError(
                    f'{where} = "{name}" is not a [models] table; there is {", ".join(self.models)}'
                )
        self._check_listening()
        app_ids = [bot.app_id for bot in self.bots.values()]
        for bot_name, bot in self.bots.items():
            if app_ids.count(bot.app_id) > 1:
                raise ValueError(f"bots.{bot_name}.app_id = {bot.app_id!r} is used by two bots")
        return self

    def _check_listening(self) -> None:
        """Only a platform that delivers what is not said to the bot can be listened to."""
        for name in (entry.partition(":")[0] for entry in self.chat.listen):
            bot = self.bots.get(name)
            if bot is None:
                raise ValueError(
                    f'chat.listen names the bot "{name}", but there is no [bots.{name}]'
                )
            if bot.platform != "feishu":
                raise ValueError(
                    f'chat.listen names "{name}", but {bot.platform} delivers only what is said to the bot; remove it'
                )

    @property
    def default_model(self) -> str:
        """The name behind "default"."""
        return next(iter(self.models)) if self.chat.model == "default" else self.chat.model

    def model_of(self, bot_name: str) -> str:
        """Name of the model that answers for a bot."""
        wanted = self.bots[bot_name].model if bot_name in self.bots else ""
        return self.default_model if wanted in {"", "default"} else wanted

    def path(self, text: str) -> Path:
        """A path from the file, made absolute."""
        return (self.folder / Path(text).expanduser()).resolve()


# The keys that a table may have, for "did you mean".
KEYS_BY_SECTION: dict[str, tuple[type[BaseModel], ...]] = {
    "server": (ServerConfig,), "storage": (StorageConfig,), "log": (LogConfig,), "chat": (ChatConfig,),
    "summarizer": (SummarizerConfig,), "recall": (RecallConfig,), "documents": (DocumentsConfig,),
    "access": (AccessConfig,), "watch": (WatchConfig,), "models": (LlamaModelConfig, OpenAIModelConfig),
    "models_hub": (ModelsHubConfig,),
    "bots": (FeishuBotConfig, DingTalkBotConfig, WeComBotConfig, WeComAppConfig), "": (Config,),
}  # fmt: skip


def parse_config(data: dict[str, Any], folder: Path) -> Config:
    """A Config from parsed TOML. Raises ConfigError with one sentence."""
    try:
        return Config.model_validate({**with_backends(expand(data, "")), "folder": folder})
    except ValidationError as error:
        first, *more = say_faults(error, KEYS_BY_SECTION)
        raise ConfigError(first + (f" (and {len(more)} more)" if more else "")) from None


def load_config(path: Path) -> Config:
    """Read a config file. Raises ConfigError with one sentence that names the file."""
    try:
        data = tomllib.loads(read_text(path))
    except FileNotFoundError:
        raise ConfigError(
            f"{path} does not exist; copy config.example.toml to {path.name} and edit it"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not text in UTF-8; save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    try:
        return parse_config(data, path.resolve().parent)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
