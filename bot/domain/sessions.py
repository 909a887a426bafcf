"""Which conversation a message belongs to: the one place that makes session keys. Pure."""

from __future__ import annotations

from bot.domain.types import ChatKind, InboundMessage, SessionKey, SessionPolicy


def session_key(message: InboundMessage, policy: SessionPolicy) -> SessionKey:
    """The conversation of a message under a policy (the store fills in the epoch).

    A direct chat is always the person's own, whatever the policy, so that nobody's private talk is anybody else's
    (cases C1). `per_topic` outside a topic means the group's main line, shared by everybody in it.
    """
    if message.chat_kind is ChatKind.DIRECT or policy is SessionPolicy.PER_USER:
        return SessionKey(message.app_id, message.chat_id, None, message.sender.user_id)
    if policy is SessionPolicy.PER_TOPIC:
        return SessionKey(message.app_id, message.chat_id, message.topic_id, None)
    return SessionKey(message.app_id, message.chat_id, None, None)


def chat_key(app_id: str, chat_id: str) -> SessionKey:
    """The conversation of a chat as a whole: what is not said to one person (a greeting) belongs here."""
    return SessionKey(app_id, chat_id, None, None)


def is_shared(key: SessionKey) -> bool:
    """Several people speak in this conversation, so the prompt names who said what."""
    return key.user_id is None


def policy_of(key: SessionKey) -> SessionPolicy:
    """The policy that a key shows."""
    if key.user_id is not None:
        return SessionPolicy.PER_USER
    return SessionPolicy.SHARED if key.topic_id is None else SessionPolicy.PER_TOPIC
