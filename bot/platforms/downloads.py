"""Files by an address that a payload names: from where they may come, how large they may be, who is asked for the address.

A payload is no reason to trust an address: only the configured API's own origin and https to named hosts are asked, such a
host never at a private address (not even when its name leads there), every redirect is checked as the first address was.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, replace
from urllib.parse import urljoin, urlsplit

from bot.errors import GiveUp
from bot.platforms.http import HttpAnswer, HttpRequest, SharedHttp

MAX_REDIRECTS = 3
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Sources:
    """Where files may be fetched: `bases` are configured addresses, `hosts` names ("." in front: any host below)."""

    bases: tuple[str, ...]
    hosts: tuple[str, ...] = ()

    def is_base(self, url: str) -> bool:
        """Whether an address has a configured one's scheme, host and port."""
        found = _origin(url)
        return found is not None and any(found == _origin(base) for base in self.bases)

    def allow(self, url: str) -> bool:
        """Whether an address from a payload may be asked at all."""
        if self.is_base(url):
            return True
        found = _origin(url)
        if found is None:
            return False
        scheme, host, port = found
        if scheme != "https" or port != 443 or _is_address(host):
            return False
        names = (name.lower() for name in self.hosts)
        return any(host.endswith(name) if name.startswith(".") else host == name for name in names)


async def download(
    http: SharedHttp, what: str, url: str, sources: Sources, *, max_bytes: int
) -> HttpAnswer:
    """GET a file, without any credential. `what` names it in errors. Raises PlatformError (TooLarge above `max_bytes`)."""
    for _ in range(MAX_REDIRECTS + 1):
        if not sources.allow(url):
            raise GiveUp(f"{what}: the file's address is not among those that may be asked")
        request = HttpRequest("GET", url, timeout_s=_TIMEOUT_S, max_bytes=max_bytes)
        answer = await http.exchange(replace(request, public_only=not sources.is_base(url)))
        if answer.status not in _REDIRECTS:
            return answer
        url = urljoin(url, answer.headers.get("location", ""))
    raise GiveUp(f"{what}: more than {MAX_REDIRECTS} redirects")


def _origin(url: str) -> tuple[str, str, int] | None:
    """Scheme, host and port; None for what is no plain address of a web server."""
    try:
        parts = urlsplit(url)
        port = parts.port or {"https": 443, "http": 80}.get(parts.scheme, 0)
    except ValueError:
        return None
    host = (parts.hostname or "").lower()
    # Two readers could take another host out of such an address.
    if not host or not port or "@" in parts.netloc or "\\" in url:
        return None
    return parts.scheme, host, port


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        # "2130706433" and "127.1" are addresses to some.
        return host.replace(".", "").isdigit()
    return True
