"""The `[models_hub]` table: where `hearth model pull` fetches from, and where models lie. Read through `bot.config`."""

from __future__ import annotations

from typing import Literal
from urllib.parse import urlsplit

from pydantic import field_validator

from bot.config_bots import Section


class ModelsHubConfig(Section):
    """[models_hub]"""

    source: Literal["huggingface", "modelscope"] = "huggingface"
    endpoint: str = ""
    folder: str = "models"

    @field_validator("endpoint")
    @classmethod
    def _endpoint(cls, value: str) -> str:
        parts = urlsplit(value)
        if value and (parts.scheme not in {"http", "https"} or not parts.hostname):
            raise ValueError(
                f'"{value}" is not an http(s) URL, for example "https://hf-mirror.com"'
            )
        return value.rstrip("/")
