"""The command line as a person meets it: real processes, what they print, how they end."""

from __future__ import annotations

import asyncio
import fcntl
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import pytest

from bot.cli import run
from tests.support.stand import Stand, free_port

ROOT = Path(__file__).parents[3]
FAKE = '[models.main]\nbackend = "fake"\nfake = { reply = "好的, done." }\n[chat]\nlanguage = "en"\nshow_date = false\n'
HEARTH = (sys.executable, "-m", "bot")


def hearth(*words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*HEARTH, *words], cwd=ROOT, input=stdin, capture_output=True, timeout=50, check=False
    )


def config_file(folder: Path, text: str) -> str:
    path = folder / "config.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_terminal_of_another_alphabet_gets_what_it_can_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "argv", ["hearth", "model", "check", str(tmp_path / "模型.gguf")])
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 3
    out.seek(0)
    assert "??.gguf does not exist" in out.read()


# -- serve ---------------------------------------------------------------------------------------------------------------
async def test_serve_prints_its_block_and_ends_on_sigterm(tmp_path):
    """Two signals at once (`timeout`, `make` and supervisors send them so) are one."""
    async with Stand(tmp_path) as stand:
        assert stand.process is not None
        stand.process.send_signal(signal.SIGTERM)
        stand.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(20):
            assert await stand.process.wait() == 0
        printed = stand.log_path.read_text(encoding="utf-8")
        settings = stand.sandbox_config
    assert f"Hearth listens on {stand.url}" in printed
    assert f"paste {stand.url}/webhook/feishu into the console" in printed
    assert "access.admins" in printed
    assert "Traceback" not in printed
    for secret in (settings.app_secret, settings.encrypt_key, settings.verification_token):
        assert secret not in printed


async def test_a_second_serve_on_the_same_database_or_port_is_told_so(tmp_path):
    async with Stand(tmp_path) as stand:
        assert stand.process is not None
        second = await asyncio.to_thread(hearth, "serve", "-c", str(tmp_path / "config.toml"))
        assert second.returncode == 2
        assert f"in use by process {stand.process.pid}" in second.stderr.decode()
        (other := tmp_path / "other").mkdir()
        config = config_file(other, FAKE + f"[server]\nport = {stand.port}\n")
        third = await asyncio.to_thread(hearth, "serve", "-c", config)
        assert third.returncode == 2
        assert third.stderr.decode().splitlines()[-1] == (
            f"hearth: server.host/port: 127.0.0.1:{stand.port} is already in use; set another [server] port"
        )


# -- config, migrate ---------------------------------------------------------------------------------------------------
def test_config_check(tmp_path, monkeypatch, capsys):
    words = ("config", "check", "-c", config_file(tmp_path, FAKE))
    assert run_here(monkeypatch, *words, "--json") == 0
    assert [found["where"] for found in json.loads(capsys.readouterr().out)] == ["bots"]
    config_file(tmp_path, '[models.main]\npath = "no.gguf"\n')
    assert run_here(monkeypatch, *words) == 2
    assert "error: models.main.path" in capsys.readouterr().out


def test_migrate_makes_the_database_and_may_be_repeated(tmp_path):
    config = config_file(tmp_path, FAKE)
    for _ in range(2):
        done = hearth("migrate", "-c", config)
        assert (done.returncode, done.stdout.decode()) == (0, "the database is up to date\n")
    assert (tmp_path / "data" / "hearth.db").is_file()


WRONG: list[tuple[Sequence[str], str]] = [
    (("serve", "-c", "{folder}/none.toml"), "does not exist; copy config.example.toml"),
    (("serve", "-c", "{folder}"), "cannot be read"),
    (("chat", "-c", "{folder}/none.toml"), "does not exist"),
    (("chat", "--engine", "real"), 'only "fake" can be forced'),
    (("demo", "--engine", "real"), 'only "fake" can be forced'),
    (("demo", "--language", "fr"), 'it is "zh" or "en"'),
    (("demo", "--model", "/no/model.gguf", "--no-browser"), "/no/model.gguf does not exist"),
]


def run_here(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """The same entry point in this process: quicker, for what ends before anything is started."""
    monkeypatch.setattr(sys, "argv", ["hearth", *words])
    with pytest.raises(SystemExit) as ended:
        run()
    return int(ended.value.code or 0)


@pytest.mark.parametrize(("words", "sentence"), WRONG)
def test_what_cannot_work_is_one_line_and_code_2(tmp_path, monkeypatch, capsys, words, sentence):
    assert run_here(monkeypatch, *(word.format(folder=tmp_path) for word in words)) == 2
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert line.startswith("hearth: ")
    assert sentence in line
    assert printed.out == ""


@pytest.mark.parametrize("words", [("nope",), ("demo", "--port", "99999"), ("serve", "extra")])
def test_wrong_words_get_the_usage(monkeypatch, capsys, words):
    assert run_here(monkeypatch, *words) == 2
    assert "Usage:" in capsys.readouterr().err


# -- chat --------------------------------------------------------------------------------------------------------------
def test_chat_with_piped_lines_and_commands(tmp_path):
    """Also: the people of the service's bots do not matter here, bytes that are no text do not end the talk."""
    config = config_file(tmp_path, FAKE + '[access]\nallow = ["feishu:ou_somebody"]\n')
    lines = b"hello\n\n   \n/status\n/nope\n\xff\xfe odd bytes\n/reset\nlast line without an end"
    done = hearth("chat", "-c", config, stdin=lines)
    said = done.stdout.decode()
    assert (done.returncode, done.stderr) == (0, b"")
    assert said.count("好的, done.") == 3
    assert "1 turns" in said
    assert "There is no command /nope" in said
    assert "Reset:" in said


async def test_chat_leaves_the_questions_of_the_service_alone(tmp_path):
    """A question that waits in the service's database is answered by the service, not ended by a chat in between."""
    async with Stand(
        tmp_path,
        models={"backend": "fake", "fake": {"reply": "word " * 60, "token_delay_s": "0.01"}},
        extra={"chat": {"max_new_tokens": 400}},
    ) as stand:
        group = stand.sandbox.add_group("g", [user := stand.sandbox.add_user("Lin")])
        asked = await stand.sandbox.say(group, user, "Tell me.")
        await stand.stop_service()
        config = str(tmp_path / "config.toml")
        talk = await asyncio.to_thread(
            hearth, "chat", "-c", config, "--engine", "fake", stdin=b"/whoami\n"
        )
        assert "Role: admin" in talk.stdout.decode()
        await stand.start_service()
        (answer,) = await stand.settled(asked)
        assert answer.count("word") == 60


def test_chat_ends_when_nobody_reads():
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*HEARTH, "chat", "--engine", "fake"], cwd=ROOT, input=b"one\ntwo\n", stdout=full,
            stderr=subprocess.PIPE, timeout=50, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == b"hearth: the output was closed; nothing more can be shown\n"


async def test_ctrl_c_stops_the_reply_and_at_the_prompt_leaves(tmp_path):
    config = config_file(
        tmp_path, FAKE.replace('reply = "好的, done."', 'token_delay_s = "0.01", reply = "' + "word " * 200 + '"')
    )  # fmt: skip
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *HEARTH, "chat", "-c", config, cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs,
        preexec_fn=lambda: (os.setsid(), fcntl.ioctl(0, termios.TIOCSCTTY, 0))[0],
    )  # fmt: skip
    os.close(theirs)
    screen = b""

    async def until(text: bytes) -> None:
        nonlocal screen
        while text not in screen:
            screen += await asyncio.to_thread(os.read, ours, 4096)
        screen = screen.partition(text)[2]

    try:
        async with asyncio.timeout(40):
            await until(b"you> ")
            os.write(ours, b"talk\n")
            await until(b"word word")
            os.write(ours, b"\x03")
            await until(b"(Stopped.)")
            await until(b"you> ")
            os.write(ours, b"\x03")
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(ours)


# -- demo --------------------------------------------------------------------------------------------------------------
async def test_demo_comes_up_and_says_where(tmp_path):
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        *HEARTH, "demo", "--engine", "fake", "--no-browser", "--port", str(port),
        cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        async with asyncio.timeout(40):
            printed = await process.stdout.readuntil(b"Ctrl-C ends the demo.")
            # It is printed after the sandbox's check of the webhook's URL; look at both sides.
            service = re.search(rb"Hearth listens at (http://\S+)", printed)
            assert service is not None
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/") as page:
                    assert page.status == 200
                async with session.post(f"{service[1].decode()}/webhook/feishu", data=b"{}") as no:
                    assert no.status == 401
            process.send_signal(signal.SIGINT)
            assert await process.wait() == 0
            assert b"Traceback" not in await process.stdout.read()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert not list(tmp_path.iterdir())
