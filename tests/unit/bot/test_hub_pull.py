"""Pulling a model from a hub: whole, checked, resumed, refused in one sentence. The hub is played on loopback."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import random
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bot.errors import HubError
from bot.hub.pull import access, pull
from bot.hub.types import Pulled, remote_file
from tests.support.hubkit import TOKEN, Hub, Trouble, running_hub

REPO = "owner/Model-GGUF"
ONE, TWO = (random.Random(seed).randbytes(3 * 2**16 + 17) for seed in (1, 2))
HUBS = ("huggingface", "modelscope")


class Notes:
    """A watcher that remembers."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.begun: list[tuple[str, bool]] = []
        self.n_bytes = 0

    def begin(self, name: str, n_bytes: int, *, fetching: bool) -> None:
        self.begun.append((name, fetching))

    def advance(self, n_bytes: int) -> None:
        self.n_bytes += n_bytes

    def note(self, text: str) -> None:
        self.texts.append(text)


@pytest.fixture
async def hub(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Hub]:
    for name in ("HF_TOKEN", "HEARTH_HUB_TOKEN", "HF_ENDPOINT", "MODELSCOPE_API_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    async with running_hub() as running:
        running.repos[REPO] = {
            "README.md": b"about",
            "Model.Q4_K_M.gguf": ONE,
            "Q8_0/Model.Q8_0-00001-of-00002.gguf": ONE,
            "Q8_0/Model.Q8_0-00002-of-00002.gguf": TWO,
            "config.json": b"{}",
        }
        yield running


async def pulled(
    hub: Hub, folder: Path, wanted: str = "Q4_K_M", kind: str = "huggingface", **more: Any
) -> tuple[Pulled, Notes, list[float]]:
    notes, pauses = Notes(), list[float]()
    where = access(kind, hub.endpoint, more.get("repo", REPO), more.get("revision", ""))
    done = await asyncio.to_thread(pull, where, wanted, folder, notes, pauses.append)
    return done, notes, pauses


async def refused(hub: Hub, folder: Path, *words: str, **more: Any) -> str:
    with pytest.raises(HubError) as raised:
        await pulled(hub, folder, *words, **more)
    assert TOKEN not in str(raised.value)
    assert "Signature" not in str(raised.value)
    return str(raised.value)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("kind", HUBS)
async def test_a_model_comes_whole_with_its_checksum(hub: Hub, tmp_path: Path, kind: str) -> None:
    done, notes, _ = await pulled(hub, tmp_path / "models", kind=kind)
    assert done == Pulled(tmp_path / "models" / "Model.Q4_K_M.gguf", len(ONE), was_there=False)
    assert done.path.read_bytes() == ONE
    noted = (tmp_path / "models" / "Model.Q4_K_M.gguf.sha256").read_text()
    assert noted == f"{sha256(ONE)}  Model.Q4_K_M.gguf\n"
    assert sorted(p.name for p in done.path.parent.iterdir()) == [
        "Model.Q4_K_M.gguf", "Model.Q4_K_M.gguf.sha256",
    ]  # fmt: skip
    assert notes.n_bytes == len(ONE)
    assert notes.texts == []


@pytest.mark.parametrize("kind", HUBS)
async def test_a_split_model_comes_with_all_parts(hub: Hub, tmp_path: Path, kind: str) -> None:
    done, _, _ = await pulled(hub, tmp_path, "Model.Q8_0-00002-of-00002.gguf", kind)
    assert done.path == tmp_path / "Model.Q8_0-00001-of-00002.gguf"
    assert done.n_bytes == len(ONE) + len(TWO)
    assert done.path.read_bytes() == ONE
    assert (tmp_path / "Model.Q8_0-00002-of-00002.gguf").read_bytes() == TWO


@pytest.mark.parametrize("kind", HUBS)
async def test_a_cut_connection_goes_on_where_it_was_cut(
    hub: Hub, tmp_path: Path, kind: str
) -> None:
    hub.trouble += [Trouble(cut_after=2**16 + 5), Trouble(cut_after=2**16), Trouble(status=503)]
    done, notes, pauses = await pulled(hub, tmp_path, kind=kind)
    assert done.path.read_bytes() == ONE
    assert hub.ranges[0] == 0
    assert hub.ranges[1] > 0
    assert hub.ranges[2] == hub.ranges[3] > hub.ranges[1]
    assert notes.n_bytes == len(ONE)
    assert len(notes.texts) == len(pauses) == 3


async def test_the_next_run_goes_on_where_the_last_one_ended(hub: Hub, tmp_path: Path) -> None:
    hub.trouble += [Trouble(cut_after=2**17)] + [Trouble(status=502)] * 5
    sentence = await refused(hub, tmp_path)
    assert "lost again and again (status 502)" in sentence
    assert "run the same command to go on" in sentence
    (part,) = tmp_path.glob("*.part")
    kept = part.stat().st_size
    assert 0 < kept <= 2**17
    hub.ranges.clear()
    done, notes, _ = await pulled(hub, tmp_path)
    assert hub.ranges == [kept]
    assert done.path.read_bytes() == ONE
    assert notes.n_bytes == len(ONE)


async def test_a_partial_file_of_another_version_is_not_appended_to(
    hub: Hub, tmp_path: Path
) -> None:
    hub.trouble += [Trouble(cut_after=2**17)] + [Trouble(status=500)] * 5
    await refused(hub, tmp_path)
    hub.repos[REPO]["Model.Q4_K_M.gguf"] = TWO
    hub.ranges.clear()
    done, _, _ = await pulled(hub, tmp_path)
    assert hub.ranges == [0]
    assert done.path.read_bytes() == TWO


async def test_a_hub_that_ignores_ranges_costs_time_not_bytes(hub: Hub, tmp_path: Path) -> None:
    hub.trouble += [Trouble(cut_after=2**16), Trouble(whole=True)]
    done, notes, _ = await pulled(hub, tmp_path)
    assert done.path.read_bytes() == ONE
    assert notes.n_bytes == len(ONE)
    assert "the hub does not send parts of a file: beginning anew" in notes.texts


async def test_other_bytes_than_asked_for_are_not_written(hub: Hub, tmp_path: Path) -> None:
    hub.trouble += [Trouble(cut_after=2**16), Trouble(shifted=True)]
    assert "sent other bytes of Model.Q4_K_M.gguf than were asked for" in await refused(hub, tmp_path)  # fmt: skip
    assert not (tmp_path / "Model.Q4_K_M.gguf").exists()


async def test_a_busy_hub_is_asked_again_when_it_says(hub: Hub, tmp_path: Path) -> None:
    hub.trouble += [Trouble(status=429, headers={"Retry-After": "7"})]
    _, _, pauses = await pulled(hub, tmp_path)
    assert pauses == [7.0]


async def test_a_wrong_checksum_is_removed_with_one_sentence(hub: Hub, tmp_path: Path) -> None:
    hub.trouble += [Trouble(garbled=True)]
    sentence = await refused(hub, tmp_path)
    assert f"should have {sha256(ONE)[:12]}…: it was removed" in sentence
    assert list(tmp_path.iterdir()) == []
    done, _, _ = await pulled(hub, tmp_path)
    assert done.path.read_bytes() == ONE


async def test_what_is_there_is_checked_and_not_fetched(hub: Hub, tmp_path: Path) -> None:
    await pulled(hub, tmp_path)
    hub.ranges.clear()
    done, notes, _ = await pulled(hub, tmp_path)
    assert done.was_there
    assert hub.ranges == []
    assert notes.begun == [("Model.Q4_K_M.gguf", False)]


@pytest.mark.parametrize("data", [TWO, b"short"])
async def test_another_file_of_that_name_is_left_alone(
    hub: Hub, tmp_path: Path, data: bytes
) -> None:
    (tmp_path / "Model.Q4_K_M.gguf").write_bytes(data)
    assert "is another file than" in await refused(hub, tmp_path)
    assert (tmp_path / "Model.Q4_K_M.gguf").read_bytes() == data


async def test_the_disk_is_looked_at_before(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=256 * 2**20 + len(ONE) - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    assert "GiB free and" in await refused(hub, tmp_path)
    assert hub.ranges == []
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=usage.free + 1))
    await pulled(hub, tmp_path)


async def test_two_pulls_at_once_do_not_mix(hub: Hub, tmp_path: Path) -> None:
    part = tmp_path / f"Model.Q4_K_M.gguf.{sha256(ONE)[:12]}.part"
    with part.open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert "is being fetched by another process" in await refused(hub, tmp_path)


@pytest.mark.parametrize("kind", HUBS)
async def test_a_gated_model_says_where_to_accept_its_terms(
    hub: Hub, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.gated.add(REPO)
    sentence = await refused(hub, tmp_path, kind=kind)
    assert f"accept its terms at {hub.endpoint}/{REPO} and set HEARTH_HUB_TOKEN" in sentence or (
        kind == "modelscope" and "HEARTH_HUB_TOKEN" in sentence
    )
    monkeypatch.setenv("HEARTH_HUB_TOKEN", "wrong")
    assert "may not be read with this token" in await refused(hub, tmp_path, kind=kind)
    monkeypatch.setenv("HEARTH_HUB_TOKEN", TOKEN)
    done, _, _ = await pulled(hub, tmp_path, kind=kind)
    assert done.path.read_bytes() == ONE


async def test_a_hubs_own_token_is_not_sent_to_a_mirror(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("MODELSCOPE_API_TOKEN", TOKEN)
    for kind in HUBS:
        await pulled(hub, tmp_path / kind, kind=kind)
    assert set(hub.tokens) == {""}
    assert access("huggingface", "", REPO, "").token == TOKEN
    assert access("modelscope", "", REPO, "").token == TOKEN
    assert TOKEN not in repr(access("huggingface", "", REPO, ""))
    monkeypatch.setenv("HEARTH_HUB_TOKEN", TOKEN)
    assert access("huggingface", "http://mirror.example", REPO, "").token == ""
    assert access("huggingface", "https://mirror.example", REPO, "").token == TOKEN


def test_the_environment_names_the_mirror(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "https://hf-mirror.com/")
    assert access("huggingface", "", REPO, "").endpoint == "https://hf-mirror.com"
    assert access("huggingface", "https://other", REPO, "").endpoint == "https://other"
    assert access("modelscope", "", REPO, "").endpoint == "https://modelscope.cn"


@pytest.mark.parametrize("kind", HUBS)
@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"repo": "owner/none"}, "owner/none is not at http://127.0.0.1:"),
        ({"repo": "a/b/c"}, "a/b/c is no repository: write OWNER/NAME"),
        ({"wanted": "Q2_K"}, "holds no Q2_K"),
    ],
)
async def test_what_is_not_there_is_one_sentence(
    hub: Hub, tmp_path: Path, kind: str, more: dict[str, str], sentence: str
) -> None:
    options = {"wanted": "Q4_K_M", "kind": kind} | more
    assert sentence in await refused(hub, tmp_path, **options)


async def test_an_unknown_revision_is_named(hub: Hub, tmp_path: Path) -> None:
    assert "has no revision v9" in await refused(hub, tmp_path, revision="v9")


@pytest.mark.parametrize("kind", HUBS)
async def test_nobody_there_names_the_mirrors(hub: Hub, tmp_path: Path, kind: str) -> None:
    hub.endpoint = "http://127.0.0.1:9"
    sentence = await refused(hub, tmp_path, kind=kind)
    assert "cannot be reached" in sentence
    assert "--endpoint https://hf-mirror.com or --from modelscope" in sentence


async def test_a_mirror_of_the_other_kind_is_named(hub: Hub, tmp_path: Path) -> None:
    hub.endpoint = hub.cdn
    assert "is not at" in await refused(hub, tmp_path)


async def test_names_that_leave_the_folder_are_not_written(hub: Hub, tmp_path: Path) -> None:
    hub.repos[REPO] = {"..\\evil.gguf": ONE}
    assert "which is not written here" in await refused(hub, tmp_path, "")


async def test_a_file_without_a_checksum_is_checked_by_its_size(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Hub, "sha256", lambda *_: "")
    hub.trouble += [Trouble(cut_after=2**16)] + [Trouble(status=500)] * 5
    await refused(hub, tmp_path, kind="modelscope")
    hub.ranges.clear()
    done, notes, _ = await pulled(hub, tmp_path, kind="modelscope")
    assert hub.ranges == [0]
    assert done.path.read_bytes() == ONE
    assert "the hub names no checksum" in notes.texts[-1]


def test_an_address_that_is_none_is_one_sentence() -> None:
    with pytest.raises(HubError, match="is not an http"):
        access("huggingface", "hf-mirror.com", REPO, "")
    with pytest.raises(HubError, match="--from civitai: there is huggingface and modelscope"):
        access("civitai", "", REPO, "")


async def test_what_a_hub_tells_that_cannot_be_is_one_sentence(hub: Hub, tmp_path: Path) -> None:
    for kind, name in (("huggingface", "Hugging Face"), ("modelscope", "ModelScope")):
        hub.told["Model.Q4_K_M.gguf"] = "../../../../etc/x"
        sentence = await refused(hub, tmp_path, "Q4_K_M", kind=kind)
        assert f"did not answer as {name} does" in sentence
    with pytest.raises(ValueError, match="-5 bytes"):
        remote_file("m.gguf", -5, "", "")
    assert not list(tmp_path.iterdir())


async def test_a_checksum_in_other_letters_is_the_same(hub: Hub, tmp_path: Path) -> None:
    true = hashlib.sha256(ONE).hexdigest()
    hub.told["Model.Q4_K_M.gguf"] = f"sha256:{true.upper()}"
    done, _, _ = await pulled(hub, tmp_path)
    assert done.path.read_bytes() == ONE


async def test_a_hub_that_begins_anew_each_time_is_given_up(hub: Hub, tmp_path: Path) -> None:
    """Cut here and there, never further than once before: no download."""
    for i in range(8):
        hub.trouble.append(Trouble(whole=True, cut_after=2**16 + 10 * (i % 2)))
    sentence = await refused(hub, tmp_path)
    assert "was lost again and again" in sentence


async def test_names_that_move_the_cursor_are_not_there(hub: Hub, tmp_path: Path) -> None:
    hub.repos[REPO] = {"M\x9b2J.Q4_K_M.gguf": ONE}
    assert "holds no .gguf file" in await refused(hub, tmp_path)


async def test_a_model_counts_where_its_checksum_cannot_be_noted(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "Model.Q4_K_M.gguf.sha256").mkdir()
    done, notes, _ = await pulled(hub, tmp_path)
    assert done.path.read_bytes() == ONE
    assert "the checksum is not kept" in notes.texts[-1]
    done.path.unlink()
    done.path.symlink_to("/dev/full")
    assert "another file than" in await refused(hub, tmp_path)
    (tmp_path / "file").write_text("")
    assert "cannot be made" in await refused(hub, tmp_path / "file" / "models")


@pytest.mark.parametrize(
    "text", ["http://[::1", "http://h:port", "https://h:99999", "ftp://h", "h"]
)
def test_an_endpoint_that_is_none_is_one_sentence(text: str) -> None:
    with pytest.raises(HubError, match="is not an http"):
        access("huggingface", text, REPO, "")
