"""API keys: who is let in, who is not, and what is told about it."""

from __future__ import annotations

import hashlib

import pytest
from multidict import CIMultiDict
from pydantic import SecretStr

from bot.errors import ConfigError
from bot.web.api_keys import ApiKeys
from bot.web.openai_wire import ApiError

KEY = "sk-hearth-0123456789"
HASHED = "sha256:" + hashlib.sha256(KEY.encode()).hexdigest()


def keys(*entries: str) -> ApiKeys:
    return ApiKeys([SecretStr(entry) for entry in entries])


def bearer(key: str) -> CIMultiDict[str]:
    return CIMultiDict({"Host": "bot.example.com", "authorization": f"Bearer {key}"})


@pytest.mark.parametrize("entry", [KEY, HASHED, HASHED.upper().replace("SHA256", "sha256")])
def test_the_right_key_is_let_in_from_anywhere(entry: str) -> None:
    caller = keys("another", entry).admit(bearer(KEY), "203.0.113.9")
    assert caller.label == "key1"
    assert KEY not in caller.scope
    assert hashlib.sha256(KEY.encode()).hexdigest()[:12] not in caller.scope


def test_one_key_has_one_scope_however_it_is_written() -> None:
    plain, hashed = (keys(entry).admit(bearer(KEY), "::1") for entry in (KEY, HASHED))
    assert plain.scope == hashed.scope
    assert keys("other").admit(bearer("other"), "::1").scope != plain.scope


def test_interactive_keys_are_told_apart_by_their_list() -> None:
    both = ApiKeys([SecretStr("batch")], [SecretStr("other"), SecretStr(HASHED)])
    assert both.admit(bearer("batch"), "::1").interactive is False
    caller = both.admit(bearer(KEY), "::1")
    assert (caller.label, caller.interactive) == ("interactive1", True)
    assert ApiKeys([], [SecretStr(KEY)]).is_open is False
    for entry, says in ((KEY, "is in server.api_keys too"), ("", "is empty")):
        with pytest.raises(ConfigError, match=rf"server\.interactive_api_keys\[0\].*{says}"):
            ApiKeys([SecretStr(HASHED)], [SecretStr(entry)])


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": KEY},
        {"Authorization": "Bearer "},
        {"Authorization": f"Basic {KEY}"},
        {"Authorization": f"Bearer {KEY}x"},
        {"Authorization": f"Bearer {HASHED}"},
        {"Authorization": "Bearer \udcff"},
    ],
)
def test_everything_else_is_refused_also_on_loopback(headers: dict[str, str]) -> None:
    with pytest.raises(ApiError) as caught:
        keys(HASHED).admit(CIMultiDict({"Host": "localhost", **headers}), "127.0.0.1")
    assert caught.value.status == 401
    assert KEY not in caught.value.message


@pytest.mark.parametrize("entry", ["", "  ", "sha256:", "sha256:12ab", "sha256:" + "g" * 64])
def test_an_entry_that_can_be_no_key_is_refused_at_start(entry: str) -> None:
    with pytest.raises(ConfigError, match=r"server\.api_keys\[1\]"):
        keys(KEY, entry)


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"])
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8080", "[::1]:8080", "LocalHost:1"])
def test_without_keys_this_machine_is_let_in(peer: str, host: str) -> None:
    assert keys().admit(CIMultiDict({"Host": host}), peer).label == "local"


@pytest.mark.parametrize(
    ("headers", "peer", "status"),
    [
        ({"Host": "localhost"}, "192.168.1.7", 401),
        ({"Host": "localhost"}, "", 401),
        ({"Host": "localhost"}, "fe80::1%eth0", 401),
        ({"Host": "evil.example"}, "127.0.0.1", 403),
        ({"Host": "localhost.evil.example:80"}, "127.0.0.1", 403),
        ({"Host": "127.0.0.1@evil.example"}, "127.0.0.1", 403),
        ({"Host": "[::1"}, "127.0.0.1", 403),
        ({}, "127.0.0.1", 403),
        ({"Host": "127.0.0.1", "X-Forwarded-For": "203.0.113.9"}, "127.0.0.1", 403),
        ({"Host": "127.0.0.1", "Origin": "https://evil.example"}, "127.0.0.1", 403),
        ({"Host": "127.0.0.1", "Origin": "null"}, "127.0.0.1", 403),
    ],
)
def test_without_keys_nobody_else_is(headers: dict[str, str], peer: str, status: int) -> None:
    with pytest.raises(ApiError) as caught:
        keys().admit(CIMultiDict(headers), peer)
    assert caught.value.status == status
    assert "\n" not in caught.value.message


def test_a_page_of_this_machine_may_use_it() -> None:
    headers = CIMultiDict({"Host": "127.0.0.1:8080", "Origin": "http://localhost:3000"})
    assert keys().admit(headers, "127.0.0.1").label == "local"
