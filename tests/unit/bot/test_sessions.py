"""Session keys: who shares a conversation."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from bot.domain.sessions import chat_key, is_shared, policy_of, session_key
from bot.domain.types import (
    ChatKind,
    InboundMessage,
    ReplyTarget,
    Sender,
    SessionKey,
    SessionPolicy,
)


def _message(user: str, kind: ChatKind, topic: str | None = None, chat: str = "c", app: str = "a"):
    return InboundMessage(
        app_id=app,
        dedupe_key="d",
        event_id="e",
        message_id="m",
        chat_id=chat,
        chat_kind=kind,
        topic_id=topic,
        sender=Sender(user),
        text="x",
        mentions_bot=True,
        sent_at=datetime.now(UTC),
        target=ReplyTarget(app, chat, "m"),
    )


@pytest.mark.parametrize(
    ("policy", "topic", "expected"),
    [
        (SessionPolicy.PER_USER, None, SessionKey("a", "c", None, "u")),
        (SessionPolicy.PER_USER, "t", SessionKey("a", "c", None, "u")),
        (SessionPolicy.SHARED, None, SessionKey("a", "c", None, None)),
        (SessionPolicy.SHARED, "t", SessionKey("a", "c", None, None)),
        (SessionPolicy.PER_TOPIC, "t", SessionKey("a", "c", "t", None)),
        (SessionPolicy.PER_TOPIC, None, SessionKey("a", "c", None, None)),
    ],
)
def test_the_policy_decides_in_groups(policy, topic, expected):
    assert session_key(_message("u", ChatKind.GROUP, topic), policy) == expected


@pytest.mark.parametrize("policy", list(SessionPolicy))
def test_a_direct_chat_is_nobody_elses(policy):
    mine = session_key(_message("u", ChatKind.DIRECT), policy)
    other = session_key(_message("v", ChatKind.DIRECT), policy)
    assert mine.user_id == "u"
    assert mine != other


def test_the_same_user_id_on_two_platforms_is_two_conversations():
    one = session_key(_message("u", ChatKind.DIRECT, app="feishu"), SessionPolicy.PER_USER)
    two = session_key(_message("u", ChatKind.DIRECT, app="wecom"), SessionPolicy.PER_USER)
    assert one != two


@pytest.mark.parametrize("policy", list(SessionPolicy))
def test_a_key_tells_its_policy(policy):
    key = session_key(_message("u", ChatKind.GROUP, "t"), policy)
    assert policy_of(key) is policy
    assert is_shared(key) is (policy is not SessionPolicy.PER_USER)


def test_a_greeting_belongs_to_the_chat():
    assert chat_key("a", "c") == SessionKey("a", "c", None, None)
