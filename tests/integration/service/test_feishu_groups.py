"""Feishu groups, the whole of Hearth in front of the strict sandbox: listening is told, what was missed is known, quotes are read."""

from __future__ import annotations

from pathlib import Path

from bot.app import Hearth
from bot.config import parse_config
from bot.sandbox.feishu import FeishuSandbox, SandboxConfig
from bot.sandbox.feishu.judge import visible_text
from bot.sandbox.tables import feishu_table


async def test_a_group_that_is_listened_to(tmp_path: Path) -> None:
    async with FeishuSandbox(SandboxConfig(group_messages="all")) as sandbox:
        config = parse_config(
            {
                "server": {"port": 0},
                "storage": {"url": "sqlite:///hearth.db"},
                # The scripted answer repeats the beginning of what the model was shown.
                "models": {"main": {"backend": "fake"}},
                "chat": {"language": "en", "show_date": False, "session": "shared", "listen": ["feishu:*"]},
                "bots": {"feishu": feishu_table(sandbox.config, sandbox.base_url)},
            },
            tmp_path,
        )  # fmt: skip
        hearth = Hearth(config)
        await hearth.start()
        try:
            assert hearth.web is not None
            sandbox.subscribe(f"{hearth.web.url}/webhook/feishu")
            ann, bob = sandbox.add_user("Ann"), sandbox.add_user("Bob")
            group = sandbox.add_group("G", [ann, bob])

            def answers() -> list[str]:
                bots = [m for m in sandbox.messages(group) if m.sender.bot]
                return [] if any(m.card and m.card.streaming for m in bots) else [visible_text(m) for m in bots]  # fmt: skip

            said = await sandbox.say(group, bob, "the picnic is on Sunday", mention_bot=False)
            await sandbox.wait_for(lambda: len(answers()) == 1)
            assert "let me listen here" in answers()[0]
            await sandbox.say(group, ann, "/missed")
            await sandbox.wait_for(lambda: len(answers()) == 2 and answers()[1])
            assert "Said in the group lately" in answers()[1]
            asked = await sandbox.say(group, ann, "sure?", reply_to=said.message)
            await sandbox.wait_for(lambda: len(answers()) == 3 and answers()[2])
            turn = await hearth.store.turn_of_message(sandbox.config.app_id, asked.id)
            assert turn is not None
            assert "> the picnic is on Sunday\n\n[" in turn.prompt_text
            assert sandbox.violations == []
        finally:
            await hearth.close()
