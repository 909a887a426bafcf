"""The sentences for what a hub refuses. None names more of an address than the hub's own: redirects carry signatures."""

from __future__ import annotations

from bot.errors import HubError
from bot.hub.types import Access


def missing(access: Access) -> HubError:
    """No such repository; hubs say the same of private ones."""
    how = "" if access.token else f", and a private one needs a token ({token_name(access)})"
    return HubError(f"{access.repo} is not at {access.endpoint}: check the name (OWNER/NAME){how}")


def gated(access: Access) -> HubError:
    """Terms must be accepted first."""
    page = f"{access.endpoint}/{access.repo}"
    if access.token:
        return HubError(
            f"{access.repo} may not be read with this token: accept the terms at {page} with the account of the token"
        )
    return HubError(
        f"{access.repo} is gated: accept its terms at {page} and set {token_name(access)} to a token of that account"
    )


def token_name(access: Access) -> str:
    """The environment variable whose token is sent to this hub."""
    own = {"https://huggingface.co": "HF_TOKEN", "https://modelscope.cn": "MODELSCOPE_API_TOKEN"}
    return own.get(access.endpoint, "HEARTH_HUB_TOKEN")


def offline() -> HubError:
    """`HF_HUB_OFFLINE` forbids every request."""
    return HubError("HF_HUB_OFFLINE is set, so that nothing may be fetched; unset it and try again")


def status(access: Access, code: int) -> HubError:
    """Any other refusal."""
    return HubError(
        f"{access.endpoint} answered with status {code} for {access.repo}; try again later"
    )


def unreachable(access: Access, error: Exception) -> HubError:
    """No answer at all."""
    reason = str(error) or type(error).__name__
    return HubError(
        f"{access.endpoint} cannot be reached ({reason}); check the network or choose a mirror, "
        "for example --endpoint https://hf-mirror.com or --from modelscope"
    )
