"""`hearth doctor --bot`: one contract for every platform and mode, against the strict sandboxes. What is wrong is named with its
key and its cure; what is right says so; nothing is sent, stored or thrown out on the way."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from bot.cli.doctor import DoctorOptions, run_doctor
from bot.config import Config, parse_config
from bot.doctor.bots import CHECKS
from bot.doctor.findings import Finding, Level
from bot.doctor.patient import Patient
from bot.doctor.runner import examine
from bot.domain.types import InboundEvent
from bot.errors import ConfigError
from bot.platforms.budget import MemoryBudget
from bot.platforms.http import SharedHttp
from bot.platforms.opening import open_adapter
from bot.sandbox import dingtalk, feishu, wecom
from bot.web.ops import OpsHandler
from bot.web.server import WebServer, build_app
from bot.web.webhook import WebhookHandler
from tests.support.stand import toml
from tests.support.wecomkit import socketed

BOT = "mine"
Found = list[tuple[str, Finding]]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Scene:
    """A sandbox and the table of a bot that fits it; `change` may spoil the table."""

    sandbox: Any
    table: dict[str, Any]
    port: int = field(default_factory=free_port)
    public_url: str = ""
    listen: tuple[str, ...] = ()

    def config(self, **changes: Any) -> Config:
        server = {"port": self.port, "public_url": self.public_url}
        tables = {"server": server, "chat": {"listen": self.listen}}
        return parse_config({**tables, "bots": {BOT: self.table | changes}}, Path())

    async def look(self, **changes: Any) -> Found:
        """Everything the doctor finds."""
        patient = Patient(self.config(**changes), bot=BOT)
        found = [(c.title, f) async for c, fs in examine(patient, CHECKS) for f in fs]
        told = " ".join(f"{f.what} {f.where} {f.cure}" for _, f in found)
        for secret in ("secret", "key", "token"):
            for name, value in (self.table | changes).items():
                if secret in name and value and name != "card_content_key":
                    assert value not in told, f"{name} is told"
        assert "\n" not in told
        assert all(f.cure for _, f in found if f.level is not Level.OK)
        assert not any("this check itself failed" in f.what for _, f in found), found
        assert not self.sandbox.violations
        return found

    @asynccontextmanager
    async def served(self, facts: dict[str, str] | None = None, **changes: Any) -> AsyncIterator[list[InboundEvent]]:  # fmt: skip
        """A Hearth that runs with this table (or a spoiled one), as far as the doctor sees it."""
        stored: list[InboundEvent] = []

        class Inbox:
            async def accept(self, _name: str, _adapter: Any, events: Any) -> None:
                stored.extend(events)

        adapter = open_adapter(BOT, self.config(**changes).bots[BOT], SharedHttp(), MemoryBudget())

        async def ready() -> tuple[bool, dict[str, Any]]:
            return True, {"bots": {BOT: facts or {}}}

        app = build_app(
            WebhookHandler({BOT: adapter}, Inbox(), 1_048_576),
            OpsHandler(ready, CollectorRegistry()),
            max_body_bytes=1_048_576,
        )
        web = WebServer(app, "127.0.0.1", self.port)
        await web.start()
        try:
            yield stored
        finally:
            await web.close()


def wrongs(found: Found) -> Iterable[Finding]:
    return [f for _, f in found if f.level is Level.ERROR]


def the_wrong(found: Found, words: str, key: str = "") -> Finding:
    """The one error there is."""
    (one,) = wrongs(found)
    assert words in one.what, one
    if key:
        assert one.where == f"bots.{BOT}.{key}", one
    return one


def said(found: Found, words: str, level: Level = Level.OK) -> Finding:
    hits = [f for _, f in found if words in f.what]
    assert hits, (words, found)
    assert hits[0].level is level, hits[0]
    return hits[0]


# -- the scenes ------------------------------------------------------------------------------------------------------
@asynccontextmanager
async def feishu_scene(mode: str = "webhook", **config: Any) -> AsyncIterator[Scene]:
    settings = feishu.SandboxConfig(**config)
    async with feishu.FeishuSandbox(settings) as sandbox:
        yield Scene(
            sandbox,
            {
                "platform": "feishu",
                "mode": mode,
                "app_id": settings.app_id,
                "app_secret": settings.app_secret,
                "encrypt_key": settings.encrypt_key,
                "verification_token": settings.verification_token,
                "api_base": sandbox.base_url,
            },
        )


@asynccontextmanager
async def dingtalk_scene(mode: str = "stream", **config: Any) -> AsyncIterator[Scene]:
    settings = dingtalk.SandboxConfig(**config)
    async with dingtalk.DingTalkSandbox(settings) as sandbox:
        yield Scene(
            sandbox,
            {
                "platform": "dingtalk",
                "mode": mode,
                "client_id": settings.client_id,
                "client_secret": settings.client_secret,
                "api_base": sandbox.base_url,
                "oapi_base": sandbox.base_url,
                "card_template": dingtalk.DEFAULT_TEMPLATE,
            },
        )


def _wecom_table(sandbox: Any, config: Any) -> dict[str, Any]:
    keys = {"token": config.token, "encoding_aes_key": config.encoding_aes_key}
    base = {"api_base": sandbox.base_url}
    if config.mode == "app":
        return base | keys | {"platform": "wecom_app", "corp_id": config.corp_id,
                              "corp_secret": config.corp_secret, "agent_id": config.agent_id}  # fmt: skip
    if config.mode == "callback":
        return base | keys | {"platform": "wecom_bot", "mode": "webhook"}
    return base | {"platform": "wecom_bot", "mode": "websocket", "bot_id": config.bot_id,
                   "secret": config.bot_secret, "ws_url": sandbox.ws_url}  # fmt: skip


@asynccontextmanager
async def wecom_scene(mode: str = "app", **config: Any) -> AsyncIterator[Scene]:
    settings = wecom.WeComConfig(mode=mode, **config)  # type: ignore[arg-type]
    async with wecom.WeComSandbox(settings) as sandbox:
        yield Scene(sandbox, _wecom_table(sandbox, settings))


Open = Callable[..., Any]
HOOKS = [
    pytest.param(feishu_scene, "webhook", id="feishu"),
    pytest.param(dingtalk_scene, "webhook", id="dingtalk"),
    pytest.param(wecom_scene, "callback", id="wecom_bot"),
    pytest.param(wecom_scene, "app", id="wecom_app"),
]
SOCKETS = [
    pytest.param(feishu_scene, "websocket", id="feishu"),
    pytest.param(dingtalk_scene, "stream", id="dingtalk"),
    pytest.param(wecom_scene, "websocket", id="wecom_bot"),
]


# -- what holds for every platform -----------------------------------------------------------------------------------
@pytest.mark.parametrize(("scene", "mode"), [*HOOKS, *SOCKETS])
async def test_a_right_bot_is_found_right(scene: Open, mode: str) -> None:
    async with scene(mode) as at:
        connected = {"connected_since": "2026-11-29T08:00:00+00:00"}
        async with at.served(connected) as stored:
            found = await at.look()
        assert wrongs(found) == []
        assert stored == [], "a check-up stores nothing"
        assert {"bot", "credentials"} < {title for title, _ in found}
        assert ("callback" if mode in {"webhook", "callback", "app"} else "connection") in {
            title for title, _ in found
        }
        said(found, "agrees with the platform's")


@pytest.mark.parametrize(("scene", "mode"), HOOKS)
async def test_handshakes_are_played_in_process_where_no_hearth_runs(
    scene: Open, mode: str
) -> None:
    async with scene(mode) as at:
        found = await at.look()
        assert "hearth serve" in said(found, "no Hearth answers", Level.WARNING).cure
        played = [f for title, f in found if title == "callback" and f.where == "in this process"]
        assert len(played) >= 2
        assert {f.level for f in played} == {Level.OK}
        assert any("forged" in f.what for f in played)


@pytest.mark.parametrize(("scene", "mode"), HOOKS)
async def test_a_running_hearth_with_other_keys_is_told_to_be_restarted(
    scene: Open, mode: str
) -> None:
    async with scene(mode) as at:
        spoiled = {k: "other" + v for k, v in at.table.items() if k in {"encrypt_key", "client_secret"}}  # fmt: skip
        if "encoding_aes_key" in at.table:
            spoiled = {"token": "another"}
        async with at.served(**spoiled):
            found = await at.look()
        refused = [f for f in wrongs(found) if "401" in f.what]
        assert refused
        assert all("restart" in f.cure for f in refused)


@pytest.mark.parametrize(("scene", "mode"), HOOKS)
async def test_the_public_address_is_tried_too(scene: Open, mode: str) -> None:
    async with scene(mode) as at:
        at.public_url = f"http://127.0.0.1:{at.port}"  # not public: it warns and tries all the same
        async with at.served():
            found = await at.look()
        assert wrongs(found) == []
        said(found, "is not a public address", Level.WARNING)
        here = [f for title, f in found if title == "callback" and f.where.startswith("http")]
        assert len(here) >= 4, "direct, and by the public address"
        at.public_url = "http://127.0.0.1:9"
        async with at.served():
            said(await at.look(), "does not answer from here", Level.WARNING)
        at.public_url = at.sandbox.base_url  # answers, but is no Hearth
        async with at.served():
            assert any("404" in f.what for f in wrongs(await at.look()))


@pytest.mark.parametrize(("scene", "mode"), SOCKETS)
async def test_a_long_connection_is_judged_by_the_running_hearth(scene: Open, mode: str) -> None:
    async with scene(mode) as at:
        said(await at.look(), "no Hearth is connected", Level.WARNING)
        deaf = {"deaf_since": "2026-11-29T08:00:00+00:00", "reason": "no connection in time"}
        async with at.served(deaf):
            the_wrong(await at.look(), "no connection in time")
        waits = {"waiting_since": "2026-11-29T08:00:00+00:00", "connected_process": "host-2:7"}
        async with at.served(waits):
            said(await at.look(), "held by host-2:7")


@pytest.mark.parametrize(("scene", "mode"), [*HOOKS, *SOCKETS])
async def test_a_platform_that_cannot_be_reached_is_named(scene: Open, mode: str) -> None:
    async with scene(mode) as at:
        nowhere = f"http://127.0.0.1:{free_port()}"
        changes = {k: nowhere for k in at.table if k.endswith("_base")}
        if "ws_url" in at.table:
            changes["ws_url"] = nowhere.replace("http", "ws")
        found = await at.look(**changes)
        if mode != "callback":  # such a bot asks nothing of WeCom
            assert "proxy" in next(iter(wrongs(found))).cure


@pytest.mark.parametrize(("scene", "mode"), [*HOOKS, *SOCKETS])
@pytest.mark.parametrize("shift_s", [-400, 400])
async def test_a_wrong_clock_is_told(scene: Open, mode: str, shift_s: int) -> None:
    async with scene(mode, clock=lambda: time.time() - shift_s) as at:
        found = await at.look()
        strict = mode == "webhook" and at.table["platform"] == "dingtalk"
        clock = said(found, f"clock is {abs(shift_s)} s", Level.ERROR if strict else Level.WARNING)
        assert ("ahead" in clock.what) == (shift_s > 0)
        assert "NTP" in clock.cure


async def test_an_unknown_bot_is_told_once() -> None:
    async with feishu_scene() as at:
        patient = replace(Patient(at.config(), bot=BOT), bot="other")
        found = [f async for _, fs in examine(patient, CHECKS) for f in fs]
        assert [f.level for f in found] == [Level.ERROR]
        assert BOT in found[0].what


# -- Feishu ----------------------------------------------------------------------------------------------------------
async def test_feishu_credentials_that_are_wrong() -> None:
    async with feishu_scene() as at:
        one = the_wrong(await at.look(app_secret="wr0ng"), "app_secret is wrong (code 10015)", "app_secret")  # fmt: skip
        assert "Credentials" in one.cure
        the_wrong(await at.look(app_id="cli_other"), "does not know this app_id (code 10003)", "app_id")  # fmt: skip


async def test_feishu_scopes_that_are_missing_are_named_with_the_page_that_grants_them() -> None:
    scopes = feishu.ALL_SCOPES - {"im:message:send_as_bot", "cardkit:card:write"}
    async with feishu_scene(scopes=scopes, asked_scopes=frozenset({"cardkit:card:write"})) as at:
        found = await at.look()
        one = the_wrong(found, "im:message:send_as_bot is not granted", "app_id")
        assert "auth?q=im:message:send_as_bot,cardkit:card:write" in one.cure
        assert "publish" in one.cure
        said(found, "cardkit:card:write is not granted: growing answers", Level.WARNING)
        the_wrong(await at.look(answer_in_groups="mentioned"), "im:message:send_as_bot")
    async with feishu_scene() as at:
        said(await at.look(), "all 8 scopes are granted")
        the_wrong(await at.look(answer_in_groups="all"), "im:message.group_msg is not granted")
        at.listen = (f"{BOT}:oc_1",)
        the_wrong(await at.look(), "im:message.group_msg is not granted")


async def test_feishu_wider_scopes_will_do() -> None:
    narrow = {"im:message:send_as_bot", "im:message:update", "im:message:readonly", "im:message.reactions:write_only"}  # fmt: skip
    async with feishu_scene(scopes=feishu.ALL_SCOPES - narrow | {"im:message"}) as at:
        said(await at.look(), "all 8 scopes are granted")


async def test_feishu_refuses_calls_without_their_scope() -> None:
    async with feishu_scene(scopes=feishu.ALL_SCOPES - {"cardkit:card:write"}) as at:
        http = SharedHttp()
        await http.start()
        adapter: Any = open_adapter(BOT, at.config().bots[BOT], http, MemoryBudget())
        from bot.platforms.feishu.errors import CardKitRefused

        with pytest.raises(CardKitRefused, match="99991672"):
            await adapter.api.create_card("{}")
        await http.close()


@pytest.mark.parametrize("missing", ["im:message.p2p_msg:readonly", "im:message.group_at_msg:readonly"])  # fmt: skip
async def test_feishu_delivers_nothing_without_its_scope(missing: str) -> None:
    async with feishu_scene(scopes=feishu.ALL_SCOPES - {missing}) as at:
        the_wrong(await at.look(), f"{missing} is not granted")
        user = at.sandbox.add_user("Lin")
        group = at.sandbox.add_group("g", [user])
        alone = await at.sandbox.say(at.sandbox.direct_chat(user), user, "one to one")
        together = await at.sandbox.say(group, user, "in a group", mention_bot=True)
        assert (alone.push is None) == ("p2p" in missing)
        assert (together.push is None) == ("group" in missing)


async def test_feishu_apps_that_are_not_in_use_and_addresses_that_are_not_trusted() -> None:
    async with feishu_scene(activate_status=3) as at:
        assert "publish" in the_wrong(await at.look(), "is installed and not enabled yet").cure
    async with feishu_scene(trusted_ips=("203.0.113.9",)) as at:
        assert "IP whitelist" in the_wrong(await at.look(), "99991401").cure


async def test_feishu_addresses_of_long_connections_are_asked_for_and_not_used() -> None:
    async with feishu_scene("websocket") as at:
        said(await at.look(), "names an address for a long connection")
        assert at.sandbox.gateway.n_opened == 0
        at.sandbox.gateway.refuse = (1000040350, "too many")
        assert "other programs" in the_wrong(await at.look(), "50 connections", "mode").cure


# -- DingTalk --------------------------------------------------------------------------------------------------------
async def test_dingtalk_credentials_that_are_wrong() -> None:
    async with dingtalk_scene("webhook") as at:
        found = await at.look(client_secret="wr0ng")
        one = the_wrong(found, "client_id or client_secret is wrong", "client_secret")
        assert "Client Secret" in one.cure
        said(found, "not asked before the credentials are right", Level.WARNING)


@pytest.mark.parametrize("missing", sorted(dingtalk.ALL_SCOPES))
async def test_dingtalk_permissions_that_are_missing_are_named(missing: str) -> None:
    async with dingtalk_scene(scopes=dingtalk.ALL_SCOPES - {missing}) as at:
        one = the_wrong(await at.look(), f"lacks the permission {missing}", "client_id")
        assert "Permission Management" in one.cure


async def test_dingtalk_card_permissions_are_not_asked_for_without_a_template() -> None:
    async with dingtalk_scene(scopes=frozenset({"qyapi_robot_sendmsg"})) as at:
        found = await at.look(card_template="")
        assert wrongs(found) == []
        said(found, "cost 1 of the month's API calls")


async def test_dingtalk_addresses_that_are_not_trusted() -> None:
    async with dingtalk_scene(trusted_ips=("203.0.113.9",)) as at:
        assert "egress IP" in the_wrong(await at.look(), "IP whitelist", "client_id").cure


async def test_dingtalk_tickets_are_asked_for_and_not_used() -> None:
    async with dingtalk_scene("stream") as at:
        said(await at.look(), "gives a ticket for the stream")
        assert at.sandbox.gateway.opened == 0
    async with dingtalk_scene("stream", stream_enabled=False) as at:
        assert "Stream" in the_wrong(await at.look(), "gives no ticket", "mode").cure


async def test_dingtalk_clicks_on_cards_are_tried_where_they_come_by_webhook() -> None:
    async with dingtalk_scene("webhook") as at:
        at.table["card_callback_url"] = f"http://127.0.0.1:{at.port}/webhook/{BOT}/card"
        async with at.served() as stored:
            said(await at.look(), "a signed click on a card")
        assert stored == []


# -- WeCom -----------------------------------------------------------------------------------------------------------
async def test_wecom_app_credentials_that_are_wrong() -> None:
    async with wecom_scene("app") as at:
        the_wrong(await at.look(corp_secret="wr0ng"), "corp_secret is wrong (code 40001)", "corp_secret")  # fmt: skip
        the_wrong(await at.look(corp_id="ww_other"), "corp_id is wrong (code 40013)", "corp_id")
        the_wrong(await at.look(agent_id=7), "not the app of this secret (code 301002)", "agent_id")


async def test_wecom_names_the_address_that_is_not_trusted() -> None:
    async with wecom_scene("app", trusted_ips=("203.0.113.9",)) as at:
        one = the_wrong(await at.look(), "address 127.0.0.1 is not trusted (code 60020)", "corp_id")
        assert "企业可信IP" in one.cure
        assert "127.0.0.1" in one.cure


async def test_wecom_apps_that_are_disabled_or_seen_by_nobody() -> None:
    async with wecom_scene("app", agent_closed=True, visible_parties=()) as at:
        found = await at.look()
        the_wrong(found, "is disabled", "agent_id")
        said(found, "nobody is in the app's visible range", Level.WARNING)


async def test_wecom_live_connections_stay_as_they_are() -> None:
    async with socketed() as (sandbox, connect):
        bot = await connect()
        assert (await bot.subscribe())["errcode"] == 0
        at = Scene(sandbox, _wecom_table(sandbox, sandbox.config))
        found = await at.look()
        why = said(found, "were not tried", Level.WARNING)
        assert "ends the live connection" in why.what
        said(found, "opens a WebSocket; nothing was subscribed")
        assert sandbox.gateway.subscriptions == 1
        assert (await bot.call("ping"))["errcode"] == 0, "it was not thrown out"
        assert bot.inbox.empty()


async def test_wecom_bot_credentials_are_proved_by_the_running_hearth() -> None:
    async with wecom_scene("websocket") as at:
        async with at.served({"connected_since": "2026-11-29T08:00:00+00:00"}):
            said(await at.look(), "took bot_id and secret")
        reason = "aibot_subscribe: bot_id or secret is wrong (code 853000)"
        async with at.served({"deaf_since": "2026-11-29T08:00:00+00:00", "reason": reason}):
            found = await at.look()
        assert [f.where for f in wrongs(found)] == [f"bots.{BOT}.secret", f"bots.{BOT}"]


async def test_wecom_sockets_that_do_not_open() -> None:
    async with wecom_scene("websocket") as at:
        url = at.sandbox.ws_url.replace("/openws", "/elsewhere")
        the_wrong(await at.look(ws_url=url), "opens no WebSocket (HTTP 404)", "ws_url")


# -- the command -----------------------------------------------------------------------------------------------------
def _written(at: Scene, folder: Path, **changes: Any) -> Path:
    table = at.table | changes
    lines = ["[server]", f"port = {at.port}", f"[bots.{BOT}]", *(f"{k} = {toml(v)}" for k, v in table.items())]  # fmt: skip
    path = folder / "config.toml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


async def test_the_command_shows_findings_and_then_the_guide(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with feishu_scene("websocket") as at:
        options = DoctorOptions(config=_written(at, tmp_path), bot=BOT, language="en")
        async with at.served({"connected_since": "2026-11-29T08:00:00+00:00"}):
            assert await run_doctor(options) == 0
        lines = capsys.readouterr().out.splitlines()
        assert any(line.startswith("ok       credentials ") for line in lines)
        assert any(line.startswith("  1. open https://open.feishu.cn/app") for line in lines)
        assert at.table["app_id"] in "\n".join(lines)
        assert at.table["app_secret"] not in "\n".join(lines)


async def test_the_command_tells_a_script_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with dingtalk_scene() as at:
        path = _written(at, tmp_path, client_secret="wr0ng")
        assert await run_doctor(DoctorOptions(config=path, bot=BOT, as_json=True)) == 2
        told = json.loads(capsys.readouterr().out)
        assert told["errors"] >= 1
        (first, *_) = [row for row in told["findings"] if row["level"] == "error"]
        assert first["where"] == f"bots.{BOT}.client_secret"
        assert "钉钉" in told["guide"]
        assert "wr0ng" not in json.dumps(told)
        with pytest.raises(ConfigError, match="--language fr"):
            await run_doctor(DoctorOptions(config=path, bot=BOT, language="fr"))
