"""Set-ups that are whole, and what can happen to them: each damage is done in reality, to files, ports and databases."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import sqlite3
import struct
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from bot.doctor.findings import Level
from bot.store import Store
from tests.support.tinymodels import write_model
from tests.support.tinyparts import ModelFile, attention, feed_forward, norms, sizes

CONFIG = """
[server]
port = {port}
[models.main]
path = "m.gguf"
n_ctx = 256
n_parallel = 1
kv_disk = "0"
kv_ram = "0"
"""


@dataclass
class SetUp:
    """A whole set-up in a folder, to be damaged. `stack` holds what must be let go again."""

    folder: Path
    stack: ExitStack

    @property
    def model(self) -> Path:
        return self.folder / "m.gguf"

    @property
    def config(self) -> Path:
        return self.folder / "config.toml"

    @property
    def database(self) -> Path:
        return self.folder / "data" / "hearth.db"

    def rewrite(self, old: str, new: str) -> None:
        text = self.config.read_text()
        assert old in text
        self.config.write_text(text.replace(old, new))


async def make_database(path: Path) -> None:
    store = Store(f"sqlite:///{path}", dedupe_hours=24, backups=1)
    await store.open()
    await store.close()


def copy_of(sound: Path, folder: Path, stack: ExitStack) -> SetUp:
    """The same again, to be damaged."""
    shutil.copytree(sound, folder)
    return SetUp(folder, stack)


def make_sound(folder: Path) -> None:
    """A model, a configuration, a database, and nothing wrong."""
    write_model("llama", folder).rename(folder / "m.gguf")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = folder / "config.toml"
    config.write_text(CONFIG.format(port=port))
    config.chmod(0o600)
    asyncio.run(make_database(folder / "data" / "hearth.db"))


def cut_model(it: SetUp) -> None:
    os.truncate(it.model, it.model.stat().st_size * 2 // 3)


def swap_offsets(it: SetUp) -> None:
    data = bytearray(it.model.read_bytes())
    name = b"blk.0.attn_k.weight"
    at = data.index(name) + len(name) + 4 + 2 * 8 + 4
    (offset,) = struct.unpack_from("<Q", data, at)
    struct.pack_into("<Q", data, at, offset + 32)
    it.model.write_bytes(data)


def web_page(it: SetUp) -> None:
    it.model.write_text("<!DOCTYPE html><html><title>Sign in</title></html>")


def lost_part(it: SetUp) -> None:
    it.model.rename(it.folder / "m-00001-of-00002.gguf")
    it.rewrite("m.gguf", "m-00001-of-00002.gguf")


def folder_for_model(it: SetUp) -> None:
    it.rewrite('"m.gguf"', '"."')


def wrong_sum(it: SetUp) -> None:
    it.rewrite("n_ctx", f'sha256 = "{"ab" * 32}"\nn_ctx')


def unknown_architecture(it: SetUp) -> None:
    data = it.model.read_bytes()
    it.model.write_bytes(data.replace(b"llama", b"zlama"))  # of the same length, everywhere


def lost_tensors(it: SetUp) -> None:
    """The same model anew, with its last layer left out."""
    file = ModelFile(it.model, "llama", 1)
    file.meta(sizes(3))
    file.ends()
    for i in range(2):
        norms(file, i, "attn_norm", "ffn_norm")
        attention(file, i)
        feed_forward(file, i)
    file.close()


def lost_template(it: SetUp) -> None:
    data = it.model.read_bytes()
    it.model.write_bytes(data.replace(b"tokenizer.chat_template", b"tokenizer.xxxx_template"))


def taken_port(it: SetUp) -> None:
    other = it.stack.enter_context(socket.socket())
    other.bind(("127.0.0.1", 0))
    other.listen(1)
    text = it.config.read_text()
    port = next(line for line in text.splitlines() if line.startswith("port"))
    it.rewrite(port, f"port = {other.getsockname()[1]}")


def foreign_host(it: SetUp) -> None:
    it.rewrite("[server]", '[server]\nhost = "203.0.113.7"')


def unwritable_folder(it: SetUp) -> None:
    """Root may write everywhere but into the kernel's own file systems."""
    it.rewrite("[models.main]", '[storage]\nurl = "sqlite:////sys/kernel/hearth.db"\n[models.main]')


def newer_database(it: SetUp) -> None:
    with closing(sqlite3.connect(it.database)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")


def damaged_database(it: SetUp) -> None:
    with closing(sqlite3.connect(it.database)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        size = connection.execute("PRAGMA page_size").fetchone()[0]
        (page,) = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'turns'"
        ).fetchone()
    with it.database.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\x5a" * size)


def foreign_database(it: SetUp) -> None:
    it.database.unlink()
    with closing(sqlite3.connect(it.database)) as connection:
        connection.execute("CREATE TABLE recipes (name TEXT)")


def text_database(it: SetUp) -> None:
    it.database.write_text("This is a letter, and it is long enough to have a first page. " * 100)


def misspelt_keys(it: SetUp) -> None:
    it.rewrite(
        "n_ctx = 256",
        'n_ctz = 256\nn_batch = 1\n[storag]\nx = 1\n[chat]\nlanguage = "fr"\n[models.two]\npath = "m.gguf"',
    )


def broken_toml(it: SetUp) -> None:
    it.rewrite("[models.main]", "[models.main")


def unset_variable(it: SetUp) -> None:
    it.rewrite(
        "[models.main]",
        '[bots.d]\nplatform = "dingtalk"\nclient_id = "x"\nclient_secret = "${HEARTH_NOT_SET}"\n[access]\nadmins = ["d:x"]\n[models.main]',
    )


def no_such_zone(it: SetUp) -> None:
    it.rewrite("[models.main]", '[chat]\ntimezone = "Mars/Olympus"\n[models.main]')


def nothing_fits(it: SetUp) -> None:
    it.rewrite("n_ctx = 256", 'vram = "off"\nkv_tokens = 2000000000\nn_ctx = 256')


def less_fits(it: SetUp) -> None:
    """Idle conversations may take more than all the RAM of this machine."""
    it.rewrite('kv_ram = "0"', f'kv_ram = "{psutil.virtual_memory().total // 2**30 + 1}GiB"')


@dataclass(frozen=True, slots=True)
class Damage:
    """What is done, the check that must find it, what it must say, and a part of the cure."""

    do: Callable[[SetUp], None]
    level: Level
    check: str
    says: str
    cure: str

    @property
    def name(self) -> str:
        """In words."""
        return self.do.__name__.replace("_", " ")


DAMAGES: Final = (
    Damage(cut_model, Level.ERROR, "model", "tensors are cut off or missing", "download the file again"),
    Damage(swap_offsets, Level.ERROR, "model", "tensor blk.0.attn_k.weight has offset", "download the file again"),
    Damage(web_page, Level.ERROR, "model", "is a web page, not a model", "by the file's own link"),
    Damage(lost_part, Level.ERROR, "model", "1 of its 2 parts are not there: m-00002-of-00002.gguf", "download them into"),
    Damage(folder_for_model, Level.ERROR, "model", "is a folder", "name a file in it: m.gguf"),
    Damage(wrong_sum, Level.ERROR, "model", "has the SHA-256", "or correct the sum"),
    Damage(unknown_architecture, Level.ERROR, "model", "architecture 'zlama'", "update Hearth, or choose another model"),
    Damage(lost_tensors, Level.ERROR, "model", "missing tensor", "download the file again"),
    Damage(lost_template, Level.WARNING, "model", "has no chat template", "(Instruct, Chat, -it)"),
    Damage(taken_port, Level.ERROR, "port", "is already in use by process", "set another [server] port"),
    Damage(foreign_host, Level.ERROR, "port", "203.0.113.7 is no address of this machine", 'write "127.0.0.1"'),
    Damage(unwritable_folder, Level.ERROR, "disk", "/sys/kernel cannot be written by", "name another folder"),
    Damage(newer_database, Level.ERROR, "database", "was written by a newer Hearth (schema 9999", "update Hearth"),
    Damage(damaged_database, Level.ERROR, "database", "is damaged", "backup"),
    Damage(foreign_database, Level.ERROR, "database", "tables that are not Hearth's", "a database of its own"),
    Damage(text_database, Level.ERROR, "database", "not a database", "backup"),
    Damage(misspelt_keys, Level.ERROR, "config", "did you mean n_ctx?", "correct it"),
    Damage(broken_toml, Level.ERROR, "config", "is not valid TOML", "correct it"),
    Damage(unset_variable, Level.ERROR, "config", "the environment variable HEARTH_NOT_SET is not set", "export HEARTH_NOT_SET="),
    Damage(no_such_zone, Level.ERROR, "config", '"Mars/Olympus" is no time zone', "Asia/Shanghai"),
    Damage(nothing_fits, Level.ERROR, "memory", "even the smallest placement takes", "hearth plan main"),
    Damage(less_fits, Level.WARNING, "memory", "as asked it does not fit", "free some memory"),
)  # fmt: skip
