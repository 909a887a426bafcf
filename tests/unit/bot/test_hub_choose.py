"""Which files of a repository are meant: by name, by quantization, split ones whole."""

from __future__ import annotations

import pytest

from bot.errors import HubError
from bot.hub.choose import choose, models_of
from bot.hub.types import RemoteFile

PATHS = (
    "README.md",
    "DeepSeek-V2-Lite-Chat.Q3_K_M.gguf",
    "DeepSeek-V2-Lite-Chat.Q4_K_M.gguf",
    "DeepSeek-V2-Lite-Chat.Q4_K.gguf",
    "Q8_0/DeepSeek-V2-Lite-Chat-Q8_0-00002-of-00002.gguf",
    "Q8_0/DeepSeek-V2-Lite-Chat-Q8_0-00001-of-00002.gguf",
    "mmproj-Q4_K_M.gguf",
)


def files(*paths: str) -> list[RemoteFile]:
    return [RemoteFile(path, 2**30, "0" * 64, f"http://hub/{path}") for path in paths or PATHS]


@pytest.mark.parametrize(
    ("wanted", "paths"),
    [
        ("DeepSeek-V2-Lite-Chat.Q4_K_M.gguf", [PATHS[2]]),
        ("Q4_K_M", [PATHS[2]]),
        ("q4_k_m", [PATHS[2]]),
        ("Q4_K", [PATHS[3]]),
        ("Q8_0", [PATHS[5], PATHS[4]]),
        ("DeepSeek-V2-Lite-Chat-Q8_0-00002-of-00002.gguf", [PATHS[5], PATHS[4]]),
        ("Q8_0/DeepSeek-V2-Lite-Chat-Q8_0-00001-of-00002.gguf", [PATHS[5], PATHS[4]]),
        ("DeepSeek-V2-Lite-Chat-Q8_0", [PATHS[5], PATHS[4]]),
        ("mmproj-Q4_K_M.gguf", [PATHS[6]]),
    ],
)
def test_a_name_or_a_quantization_means_one_model(wanted: str, paths: list[str]) -> None:
    assert [part.path for part in choose(files(), wanted, "o/r").parts] == paths


def test_the_only_model_needs_no_name() -> None:
    assert choose(files("a/model.gguf", "mmproj-f16.gguf", "x.bin"), "", "o/r").name == "model"


@pytest.mark.parametrize(
    ("paths", "wanted", "sentence"),
    [
        (PATHS, "", "o/r holds 4 models; name one: DeepSeek-V2-Lite-Chat.Q3_K_M (1.0 GiB), "),
        (PATHS, "Q4_K_S", 'o/r holds no Q4_K_S (did you mean "Q4_K_M"?); there is DeepSeek'),
        (PATHS, "phi.gguf", "o/r holds no phi.gguf; there is DeepSeek"),
        (("a-Q4_0.gguf", "b-Q4_0.gguf"), "Q4_0", "o/r holds 2 models for Q4_0; name one: a-Q4_0"),
        (("model.safetensors",), "Q4_K_M", "o/r holds no .gguf file; look for a repository whose name ends in -GGUF"),
        (PATHS[:5], "Q8_0", "o/r holds 1 of 2 parts of DeepSeek-V2-Lite-Chat-Q8_0: it is not whole there"),
    ],
)  # fmt: skip
def test_anything_else_names_what_there_is(
    paths: tuple[str, ...], wanted: str, sentence: str
) -> None:
    with pytest.raises(HubError) as raised:
        choose(files(*paths), wanted, "o/r")
    assert str(raised.value).startswith(sentence)


def test_a_long_list_is_cut() -> None:
    with pytest.raises(HubError, match=r"and 8 more$"):
        choose(files(*(f"m{i:02}.gguf" for i in range(20))), "", "o/r")


def test_parts_are_in_order_and_one_model() -> None:
    found = {model.name: [p.name[-9:-5] for p in model.parts] for model in models_of(files())}
    assert found["DeepSeek-V2-Lite-Chat-Q8_0"] == ["0002", "0002"]
    assert len(found) == 5
