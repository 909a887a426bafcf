"""Who may use the API, and how early they are served: the configured keys, or — where there are none — programs on this very machine.

Without keys the door is only as narrow as loopback, so three ways around that are closed: a web page in somebody's browser
(other Host names by DNS rebinding; an Origin that is not this machine) and a proxy on this machine that forwards the world
(its Host is the public name, and it tells for whom it asks). Under a public name the API therefore needs a key.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from pydantic import SecretStr

from bot.errors import ConfigError
from bot.web.openai_wire import ApiError

_HASHED = re.compile(r"sha256:([0-9a-fA-F]{64})")
_LOCAL_NAMES = {"localhost", "127.0.0.1", "::1"}
_FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "cf-connecting-ip")
_OTHER_NAME = "without server.api_keys the API answers only programs on this machine, called by localhost or 127.0.0.1; set a key"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks. `scope` parts the callers' KV and memories, and says nothing about the key; `label` is for logs.

    `interactive`: a person waits for the answer, so it is served in turn with the people in chats.
    """

    label: str
    scope: str
    interactive: bool = False


class ApiKeys:
    """Owns the digests of the configured keys; keeps no key itself."""

    def __init__(
        self, keys: Sequence[SecretStr], interactive_keys: Sequence[SecretStr] = ()
    ) -> None:
        """Raises ConfigError for an entry that can be no key."""
        self._digests = [_digest(f"server.api_keys[{n}]", key) for n, key in enumerate(keys)]
        self._n_batch_keys = len(self._digests)
        for n, key in enumerate(interactive_keys):
            where = f"server.interactive_api_keys[{n}]"
            digest = _digest(where, key)
            if digest in self._digests[: self._n_batch_keys]:
                raise ConfigError(
                    f"{where} is in server.api_keys too; leave it in one of the lists"
                )
            self._digests.append(digest)

    @property
    def is_open(self) -> bool:
        """Whether no key is configured."""
        return not self._digests

    def admit(self, headers: Mapping[str, str], peer: str) -> Caller:
        """The caller of a request. Raises ApiError 401 or 403. `headers` must not care for case; `peer` is an address."""
        if self.is_open:
            _check_local(headers, peer)
            return Caller("local", "api:local")
        kind, _, token = headers.get("Authorization", "").partition(" ")
        if kind.lower() != "bearer" or not token.strip():
            raise ApiError(
                401, "send an API key as: Authorization: Bearer <key>", code="missing_api_key"
            )
        given = hashlib.sha256(token.strip().encode("utf-8", "surrogateescape")).digest()
        # Every key is compared, so that the time tells neither which one it was nor how much of it was right.
        matches = [hmac.compare_digest(given, digest) for digest in self._digests]
        if not any(matches):
            raise ApiError(401, "the API key is not one of this server's", code="invalid_api_key")
        scope = hashlib.blake2b(given, digest_size=12, person=b"hearth-api").hexdigest()
        number = matches.index(True)
        interactive = number >= self._n_batch_keys
        label = f"interactive{number - self._n_batch_keys}" if interactive else f"key{number}"
        return Caller(label, f"api:{scope}", interactive)


def _digest(where: str, key: SecretStr) -> bytes:
    text = key.get_secret_value().strip()
    if text.startswith("sha256:"):
        match = _HASHED.fullmatch(text)
        if match is None:
            raise ConfigError(
                f'{where}: "sha256:" must be followed by the 64 hex digits of the key\'s SHA-256'
            )
        return bytes.fromhex(match[1])
    if not text:
        raise ConfigError(f"{where} is empty; remove it or give the variable behind it a value")
    return hashlib.sha256(text.encode()).digest()


def _check_local(headers: Mapping[str, str], peer: str) -> None:
    if not _is_loopback(peer):
        raise ApiError(
            401,
            "without server.api_keys the API answers only programs on this machine; set a key",
            code="missing_api_key",
        )
    if _host_of(headers.get("Host", "")) not in _LOCAL_NAMES:
        raise ApiError(403, _OTHER_NAME, code="host_not_allowed")
    if any(name in headers for name in _FORWARDED):
        raise ApiError(403, _OTHER_NAME, code="host_not_allowed")
    origin = headers.get("Origin")
    if origin is not None and _host_of(urlsplit(origin).netloc) not in _LOCAL_NAMES:
        raise ApiError(
            403,
            "without server.api_keys no web page of another origin may use the API; set a key",
            code="origin_not_allowed",
        )


def _is_loopback(peer: str) -> bool:
    try:
        address = ipaddress.ip_address(peer)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def _host_of(netloc: str) -> str:
    """The name in "name:port" or "[v6]:port", lower case; "" for what is none."""
    try:
        return (urlsplit(f"//{netloc}").hostname or "").rstrip(".")
    except ValueError:
        return ""
