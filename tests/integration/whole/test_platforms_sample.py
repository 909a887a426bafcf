"""A fixed sample of `make prove ARGS=platforms`: each platform, each kind of bad day, once. The whole table: docs/proof/platforms.md."""

from __future__ import annotations

from pathlib import Path

from tests.support import platformkit as kit


async def test_ten_chats_at_once_on_feishu(tmp_path: Path) -> None:
    figures = await kit.ten_at_once(tmp_path, "Feishu, webhook", reply=kit.SHORT, delay_s=0.002)
    assert (figures["answers"], figures["messages per answer"]) == ("10/10", "1")
    assert figures["refused"] == 0


async def test_a_fifth_of_the_calls_fails_on_dingtalk(tmp_path: Path) -> None:
    figures = await kit.failing_calls(
        tmp_path, "DingTalk, stream, card", n=3, reply=kit.SHORT, delay_s=0.002
    )
    assert figures["refused"] > 0


async def test_a_cut_connection_on_wecom(tmp_path: Path) -> None:
    figures = await kit.cut_socket(
        tmp_path, "WeCom AI bot, long connection", reply=kit.SHORT, delay_s=0.01
    )
    assert figures["back s"] < 60


async def test_everything_comes_three_times_to_a_wecom_app(tmp_path: Path) -> None:
    figures = await kit.three_times(
        tmp_path, "WeCom self-built app", reply=kit.SHORT, delay_s=0.001
    )
    assert (figures["answers"], figures["messages per answer"]) == ("2/2", "1")
