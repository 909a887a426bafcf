"""Windows, quotas, tokens and faults of the sandbox, without HTTP."""

import asyncio

import pytest

from bot.sandbox.feishu import Faults, Limits, ManualClock, SandboxConfig
from bot.sandbox.feishu.errors import ApiError
from bot.sandbox.feishu.limits import RateLimits
from bot.sandbox.feishu.tokens import Tokens


def code_of(error: pytest.ExceptionInfo[ApiError]) -> int:
    return error.value.code


def test_fifty_a_second_then_429_with_the_time_to_wait() -> None:
    clock = ManualClock()
    rates = RateLimits(Limits(), clock, enforce=True)
    for _ in range(50):
        rates.check_api("card.content")
    rates.check_api("card.settings")
    with pytest.raises(ApiError) as caught:
        rates.check_api("card.content")
    assert code_of(caught) == 99991400
    assert caught.value.status == 429
    assert caught.value.headers == {"x-ogw-ratelimit-reset": "1"}
    clock.advance(1.0)
    rates.check_api("card.content")


def test_a_thousand_a_minute() -> None:
    clock = ManualClock()
    rates = RateLimits(Limits(per_api_per_second=None), clock, enforce=True)
    for _ in range(1000):
        rates.check_api("x")
    clock.advance(20.5)
    with pytest.raises(ApiError) as caught:
        rates.check_api("x")
    assert caught.value.headers["x-ogw-ratelimit-reset"] == "40"
    clock.advance(39.5)
    rates.check_api("x")


def test_chat_patch_and_card_rates() -> None:
    rates = RateLimits(Limits(), ManualClock(), enforce=True)
    for check, limit, code in (
        (rates.check_chat, 5, 230020),
        (rates.check_patch, 5, 230020),
        (rates.check_card, 10, 99991400),
    ):
        for _ in range(limit):
            check("one")
        check("another")
        with pytest.raises(ApiError) as caught:
            check("one")
        assert code_of(caught) == code


def test_the_month_counts_only_successes() -> None:
    rates = RateLimits(Limits(monthly_calls=2), ManualClock(), enforce=True)
    rates.check_api("x")
    rates.check_api("x")
    rates.count_success()
    rates.count_success()
    with pytest.raises(ApiError) as caught:
        rates.check_api("x")
    assert (code_of(caught), caught.value.status) == (99991403, 429)


def test_not_enforced() -> None:
    rates = RateLimits(Limits(), ManualClock(), enforce=False)
    for _ in range(2000):
        rates.check_api("x")
        rates.check_card("c")


def login(config: SandboxConfig) -> dict[str, str]:
    return {"app_id": config.app_id, "app_secret": config.app_secret}


def test_same_token_while_half_an_hour_is_left_then_both_valid() -> None:
    clock = ManualClock()
    config = SandboxConfig(clock=clock)
    tokens = Tokens(config)
    first = tokens.issue(login(config))
    assert first["expire"] == 7200
    clock.advance(5400)
    again = tokens.issue(login(config))
    assert again == {"tenant_access_token": first["tenant_access_token"], "expire": 1800}
    clock.advance(1)
    second = tokens.issue(login(config))
    assert second["tenant_access_token"] != first["tenant_access_token"]
    for token in (first, second):
        tokens.check(f"Bearer {token['tenant_access_token']}")
    clock.advance(1800)
    with pytest.raises(ApiError) as caught:
        tokens.check(f"Bearer {first['tenant_access_token']}")
    assert code_of(caught) == 99991663
    tokens.check(f"Bearer {second['tenant_access_token']}")


@pytest.mark.parametrize(
    ("header", "code"),
    [(None, 99991661), ("", 99991661), ("Basic t-x", 99991661), ("Bearer ", 99991661), ("Bearer x", 99991671),
     ("Bearer t-unknown", 99991663)],
)  # fmt: skip
def test_bad_tokens(header: str | None, code: int) -> None:
    with pytest.raises(ApiError) as caught:
        Tokens(SandboxConfig()).check(header)
    assert code_of(caught) == code


@pytest.mark.parametrize(
    ("body", "code"),
    [({}, 10003), ({"app_id": "cli_other", "app_secret": "x"}, 10003),
     ({"app_id": SandboxConfig().app_id, "app_secret": "wrong"}, 10015)],
)  # fmt: skip
def test_bad_logins(body: dict[str, str], code: int) -> None:
    with pytest.raises(ApiError) as caught:
        Tokens(SandboxConfig()).issue(body)
    assert code_of(caught) == code


def test_faults_match_by_pattern_and_run_out() -> None:
    faults = Faults()
    faults.refuse("card.*", 300120, 2)
    assert faults.take("message.reply") is None
    assert [fault.code if (fault := faults.take("card.content")) else 0 for _ in range(3)] == [
        300120,
        300120,
        0,
    ]


async def test_down_ends_by_itself() -> None:
    faults = Faults()
    faults.down(0.02)
    assert faults.is_down()
    await asyncio.sleep(0.03)
    assert not faults.is_down()
    faults.slow(0.5, 10)
    assert faults.extra_latency_s() == 0.5
    faults.clear()
    assert faults.extra_latency_s() == 0
