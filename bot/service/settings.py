"""The configuration as the service reads it: always the newest one, so that a reload needs no restart."""

from __future__ import annotations

from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from bot.config import AccessConfig, ChatConfig, Config
from bot.domain.access import AccessList, Role
from bot.domain.catalogue import Language
from bot.domain.types import SessionPolicy, WhileBusy
from engine.types import Priority, Sampling


class Settings:
    """Owns the current Config. Written by `replace` alone (start-up and hot reload); everybody else reads."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._access = _access_list(config.access)

    def replace(self, config: Config) -> None:
        """Use another configuration from now on."""
        self._config = config
        self._access = _access_list(config.access)

    @property
    def config(self) -> Config:
        """The whole file."""
        return self._config

    @property
    def chat(self) -> ChatConfig:
        """[chat]"""
        return self._config.chat

    @property
    def access(self) -> AccessList:
        """The people of [access]."""
        return self._access

    def priority(self, bot_name: str, user_id: str) -> int:
        """How early a person is served, in the engine's terms: admins, then the tiers, then everybody."""
        if self._access.role(bot_name, user_id) is Role.ADMIN:
            return Priority.ADMIN
        tier = self._access.tier(bot_name, user_id)
        return Priority.PERSON if tier is None else Priority.ADMIN + 1 + tier

    @property
    def language(self) -> Language:
        """The language of everything people see."""
        return self._config.chat.language

    @property
    def while_busy(self) -> WhileBusy:
        """What a further message does while an earlier one waits or runs."""
        return WhileBusy(self._config.chat.while_busy)

    @property
    def zone(self) -> ZoneInfo:
        """The time zone of dates told to the model; UTC when the configured name is not known here."""
        try:
            return ZoneInfo(self._config.chat.timezone)
        except (ZoneInfoNotFoundError, ValueError):
            return ZoneInfo("UTC")

    def policy(self, bot_name: str, chat_id: str) -> SessionPolicy:
        """The configured session policy: the chat's, else the bot's, else the general one."""
        bot = self._config.bots.get(bot_name)
        configured = (bot.chats.get(chat_id) or bot.session) if bot else ""
        return SessionPolicy(configured or self._config.chat.session)

    def answers_all(self, bot_name: str) -> bool:
        """Whether a bot answers in groups without being mentioned."""
        bot = self._config.bots.get(bot_name)
        return bot is not None and bot.answer_in_groups == "all"

    def sampling(self, model_name: str) -> Sampling:
        """How a model's tokens are chosen."""
        return Sampling(**self._config.models[model_name].sampling.model_dump())

    def n_ctx(self, model_name: str) -> int:
        """A model's configured window (the real one is known once it is loaded)."""
        return self._config.models[model_name].n_ctx

    def stop(self, model_name: str) -> tuple[str, ...]:
        """A model's stop strings."""
        return self._config.models[model_name].stop


def _access_list(access: AccessConfig) -> AccessList:
    return AccessList.parse(
        admins=access.admins, allow=access.allow, deny=access.deny, tiers=access.tiers
    )
