"""`config.toml` as pydantic models: unknown keys are refused, secrets are hidden, every fault is one line.

`load_config` is the only reader. Strings may be "${ENV_NAME}". Relative paths are relative to the config file's folder.
Every key stands, commented, in `config.example.toml`; tests/unit/bot/test_config.py keeps the two together.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)

from bot.errors import ConfigError

_ENV = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB|TiB|KB|MB|GB|TB)?\s*$", re.IGNORECASE)
_UNITS = {
    "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
}  # fmt: skip
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}


def parse_bytes(text: str | int) -> int:
    """Bytes of "12GiB", "512 MiB", "1.5GB" or a plain number. Raises ValueError."""
    if isinstance(text, int):
        return text
    match = _SIZE.match(text)
    if not match:
        raise ValueError(f'"{text}" is not a size; write for example "2GiB" or "512MiB"')
    return int(float(match[1]) * _UNITS[(match[2] or "B").lower()])


def _check_base_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme == "https" and parts.hostname:
        return url.rstrip("/")
    if parts.scheme == "http" and parts.hostname in _LOOPBACK:
        return url.rstrip("/")
    raise ValueError(f'"{url}" must be https:// (plain http:// is allowed on loopback only)')


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class ServerConfig(_Section):
    """[server]"""

    host: str = "127.0.0.1"
    port: int = Field(8080, ge=0, le=65535)
    public_url: str = ""
    api_keys: tuple[SecretStr, ...] = ()
    max_body_bytes: int = Field(1_048_576, ge=65_536, le=33_554_432)
    shutdown_s: float = Field(20.0, ge=0, le=600)


class StorageConfig(_Section):
    """[storage]"""

    url: SecretStr = SecretStr("sqlite:///data/hearth.db")
    dedupe_hours: float = Field(24.0, ge=8.0)
    backups: int = Field(3, ge=0, le=100)


class LogConfig(_Section):
    """[log]"""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "console", "json"] = "auto"


class SamplingConfig(_Section):
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


class LlamaModelConfig(_Section):
    """[models.*] with backend = "llama.cpp" (a local model in a child process) or "fake" (scripted, for tests)."""

    backend: Literal["llama.cpp", "fake"] = "llama.cpp"
    path: str = "demo"
    n_ctx: int = Field(4096, ge=256, le=131_072)
    n_parallel: int = Field(4, ge=1, le=64)
    kv_tokens: int | Literal["auto"] = "auto"
    vram: str = "auto"
    cache_type_k: Literal["f16", "q8_0", "q4_0"] = "q8_0"
    cache_type_v: Literal["f16", "q8_0", "q4_0"] = "q8_0"
    kv_ram: str = "2GiB"
    kv_disk: str = "8GiB"
    n_gpu_layers: int = Field(-1, ge=-1)
    n_batch: int = Field(512, ge=32, le=8192)
    n_threads: int = Field(0, ge=0)
    flash_attention: Literal["auto", "on", "off"] = "auto"
    use_mmap: bool = True
    max_waiting: int = Field(256, ge=1)
    max_waiting_per_person: int = Field(16, ge=1)
    stop: tuple[str, ...] = ()
    sampling: SamplingConfig = SamplingConfig()
    fake: dict[str, str] = {}

    @field_validator("kv_ram", "kv_disk")
    @classmethod
    def _sizes(cls, value: str) -> str:
        parse_bytes(value)
        return value

    @field_validator("vram")
    @classmethod
    def _vram(cls, value: str) -> str:
        if value != "auto":
            parse_bytes(value)
        return value


class OpenAIModelConfig(_Section):
    """[models.*] with backend = "openai": any OpenAI-compatible server."""

    backend: Literal["openai"]
    base_url: str
    model: str
    n_ctx: int = Field(ge=256)
    api_key: SecretStr = SecretStr("")
    n_parallel: int = Field(4, ge=1, le=256)
    timeout_s: float = Field(600.0, gt=0)
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


class ChatConfig(_Section):
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
    max_question_chars: int = Field(20_000, ge=1)


class AccessConfig(_Section):
    """[access]: people are written "<bot name here>:<user id>", `*` for every bot or every user."""

    admins: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    per_user_per_minute: int = Field(10, ge=0)

    @field_validator("admins", "allow", "deny")
    @classmethod
    def _people(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for entry in value:
            if ":" not in entry:
                raise ValueError(
                    f'"{entry}" must be "<bot name here>:<user id>", for example "feishu:ou_123"'
                )
        return value


class FeishuBotConfig(_Section):
    """[bots.*] with platform = "feishu"."""

    platform: Literal["feishu"]
    mode: Literal["webhook", "websocket"] = "webhook"
    app_id: str = Field(min_length=1)
    app_secret: SecretStr
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
        return _check_base_url(value)

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


# Other platforms join this union with their adapters.
BotConfig = FeishuBotConfig


class Config(_Section):
    """The whole file."""

    server: ServerConfig = ServerConfig()
    storage: StorageConfig = StorageConfig()
    log: LogConfig = LogConfig()
    models: dict[str, ModelConfig] = {"main": LlamaModelConfig()}
    chat: ChatConfig = ChatConfig()
    access: AccessConfig = AccessConfig()
    bots: dict[str, BotConfig] = {}
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
        app_ids = [bot.app_id for bot in self.bots.values()]
        for bot_name, bot in self.bots.items():
            if app_ids.count(bot.app_id) > 1:
                raise ValueError(f"bots.{bot_name}.app_id = {bot.app_id!r} is used by two bots")
        return self

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


def _expand(value: Any, where: str) -> Any:
    if isinstance(value, str):

        def replace(match: re.Match[str]) -> str:
            if match[1] not in os.environ:
                raise ConfigError(f"{where}: the environment variable {match[1]} is not set")
            return os.environ[match[1]]

        return _ENV.sub(replace, value)
    if isinstance(value, dict):
        return {
            key: _expand(item, f"{where}.{key}" if where else str(key))
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_expand(item, f"{where}[{i}]") for i, item in enumerate(value)]
    return value


_KEYS_BY_SECTION: dict[str, type[BaseModel]] = {
    "server": ServerConfig, "storage": StorageConfig, "log": LogConfig, "chat": ChatConfig, "access": AccessConfig,
    "models": LlamaModelConfig, "bots": FeishuBotConfig,
}  # fmt: skip


def _say_error(error: ValidationError) -> str:
    """The first fault as one sentence: where, what, how to mend it. Never contains a value that could be a secret."""
    first = error.errors(include_input=False, include_url=False)[0]
    path = [
        str(part) for part in first["loc"] if part not in {"llama.cpp", "fake", "openai", "feishu"}
    ]
    where = ".".join(path) or "config"
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        section = _KEYS_BY_SECTION.get(path[0], Config) if len(path) > 1 else Config
        near = difflib.get_close_matches(path[-1], list(section.model_fields), n=1)
        message = "this key is not known" + (f"; did you mean {near[0]}?" if near else "")
    more = error.error_count() - 1
    return f"{where}: {message}" + (f" (and {more} more)" if more else "")


def parse_config(data: dict[str, Any], folder: Path) -> Config:
    """A Config from parsed TOML. Raises ConfigError with one sentence."""
    data = _expand(data, "")
    for model in data.get("models", {}).values():
        if isinstance(model, dict):
            model.setdefault("backend", "llama.cpp")
    try:
        return Config.model_validate({**data, "folder": folder})
    except ValidationError as error:
        raise ConfigError(_say_error(error)) from None


def load_config(path: Path) -> Config:
    """Read a config file. Raises ConfigError with one sentence that names the file."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"{path} does not exist; copy config.example.toml to {path.name} and edit it"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    try:
        return parse_config(data, path.resolve().parent)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
