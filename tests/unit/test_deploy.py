"""`make setup` for a GPU: what is missing is one line before anything is compiled, and builds do not mix in the cache."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def _module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "deploy" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def gpu() -> Iterator[ModuleType]:
    yield _module("gpu")
    del sys.modules["gpu"]


@pytest.fixture
def setup(gpu: ModuleType) -> Iterator[ModuleType]:
    _module("wheel")
    _module("waiting")
    yield _module("setup")
    del sys.modules["setup"], sys.modules["wheel"], sys.modules["waiting"]


def program(path: Path, prints: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{prints}\nEND\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("text", "kinds"),
    [("", ()), ("none", ()), ("CUDA", ("cuda",)), ("vulkan,cuda", ("cuda", "vulkan"))],
)
def test_the_wish_is_read(gpu: ModuleType, text: str, kinds: tuple[str, ...]) -> None:
    assert gpu.parse(text) == kinds


def test_an_unknown_wish_is_one_sentence(gpu: ModuleType) -> None:
    with pytest.raises(ValueError, match="GPU=rocm: write cuda, vulkan"):
        gpu.parse("rocm")


def test_a_missing_toolkit_is_named(gpu: ModuleType, tmp_path: Path) -> None:
    bare = gpu.Machine(tmp_path, {"PATH": str(tmp_path)})
    assert gpu.missing((), bare) == ""
    assert gpu.missing(("cuda",), bare).startswith("GPU=cuda needs NVIDIA's CUDA toolkit")
    vulkan = gpu.missing(("vulkan",), bare)
    assert "sudo apt install glslc libvulkan-dev spirv-headers, or" in vulkan
    both = gpu.missing(("cuda", "vulkan"), bare)
    assert both.count("\n") == 0
    assert "nvcc was not found" in both
    assert "glslc" in both


def test_cuda_wants_a_toolkit_that_knows_the_card(gpu: ModuleType, tmp_path: Path) -> None:
    home = tmp_path / "cuda"
    machine = gpu.Machine(tmp_path, {"PATH": str(tmp_path / "bin"), "CUDA_HOME": str(home)})
    # A shell is needed to run the played programs.
    for name in ("sh", "cat"):
        found = shutil.which(name)
        assert found is not None
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).symlink_to(found)
    program(home / "bin" / "nvcc", "Cuda compilation tools, release 11.5, V11.5.119")
    text = gpu.missing(("cuda",), machine)
    assert "needs CUDA 11.8 or newer" in text
    assert "of version 11.5" in text
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    says = f'Cuda compilation tools, release 12.4, V12.4.99\n#$ LIBRARIES=  "-L{libraries}"'
    program(home / "bin" / "nvcc", says)
    assert "GPU=cuda needs cuBLAS, which is not beside" in gpu.missing(("cuda",), machine)
    (libraries / "libcublas.so").touch()
    assert "CUDA_ARCH=86 for RTX 30" in gpu.missing(("cuda",), machine)
    program(tmp_path / "bin" / "nvidia-smi", "8.6\n8.6\n12.0")
    assert gpu.missing(("cuda",), machine) == ""
    assert gpu.defines(("cuda",), machine) == {
        "GGML_CUDA": "ON",
        "GGML_CUDA_NCCL": "OFF",
        "CMAKE_CUDA_COMPILER": str(home / "bin" / "nvcc"),
        "CMAKE_CUDA_ARCHITECTURES": "86-real;120-real",
    }
    machine.environment["CUDA_ARCH"] = "89, 90a"
    assert gpu.cuda_architectures(machine) == "89-real;90a-real"
    machine.environment["CUDA_ARCH"] = "ampere"
    assert "CUDA_ARCH=ampere: write numbers" in gpu.missing(("cuda",), machine)


def test_vulkan_wants_headers_of_its_time(gpu: ModuleType, tmp_path: Path) -> None:
    sdk = tmp_path / "sdk"
    machine = gpu.Machine(tmp_path, {"PATH": "", "VULKAN_SDK": str(sdk)})
    program(sdk / "bin" / "glslc", "")
    for path in ("lib/libvulkan.so", "share/cmake/SPIRV-Headers/SPIRV-HeadersConfig.cmake"):
        (sdk / path).parent.mkdir(parents=True, exist_ok=True)
        (sdk / path).touch()
    assert "sudo apt install libvulkan-dev, or" in gpu.missing(("vulkan",), machine)
    header = sdk / "include" / "vulkan" / "vulkan_core.h"
    header.parent.mkdir(parents=True)
    header.write_text("#define VK_HEADER_VERSION 239\n")
    text = gpu.missing(("vulkan",), machine)
    assert "the Vulkan headers here (1.3.239, " in text
    assert "1.3.272 or newer" in text
    header.write_text("#define VK_HEADER_VERSION 309\ntypedef struct VkLayerSettingEXT {\n")
    assert gpu.missing(("vulkan",), machine) == ""
    assert gpu.defines(("vulkan",), machine) == {"GGML_VULKAN": "ON"}


def test_builds_for_different_cards_have_different_keys(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(setup, "CACHE", tmp_path)
    choices: list[dict[str, str]] = [
        {},
        {"GGML_VULKAN": "ON"},
        {"GGML_CUDA": "ON", "CMAKE_CUDA_ARCHITECTURES": "86-real"},
        {"GGML_CUDA": "ON", "CMAKE_CUDA_ARCHITECTURES": "89-real"},
    ]
    keys = [setup.build_key(choice) for choice in choices]
    assert len(set(keys)) == 4
    settings, folder = setup.build_settings(keys[2], choices[2])
    assert settings["cmake.define.GGML_CUDA"] == "ON"
    assert settings["cmake.define.HEARTH_CPU"] == keys[2]
    assert folder.name == keys[2]
    assert "cmake.define.GGML_CUDA" not in setup.build_settings(keys[0], {})[0]
    assert setup.n_objects(choices[2]) > setup.n_objects({}) == setup.CPU_BUILD_OBJECTS


def test_a_choice_is_kept_until_another_is_made(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(setup, "CHOICE", tmp_path / "choice")
    monkeypatch.delenv("GPU", raising=False)
    assert setup.gpu_defines() == {}
    setup.CHOICE.write_text('{"GGML_VULKAN": "ON"}')
    assert setup.gpu_defines() == {"GGML_VULKAN": "ON"}
    monkeypatch.setenv("GPU", "none")
    assert setup.gpu_defines() == {}


def copied(tmp_path: Path) -> None:
    """A copy of what `make setup` needs, so that nothing here can be installed by a test."""
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    for name in ("Makefile", "uv.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)


def test_make_says_it_before_anything_is_made(tmp_path: Path) -> None:
    copied(tmp_path)
    done = subprocess.run(
        ["make", "setup", "GPU=abacus", f"PYTHON={sys.executable}"],
        cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False, env=os.environ | {"GPU": ""},
    )  # fmt: skip
    assert done.returncode != 0
    assert "[setup] GPU=abacus: write cuda, vulkan, cuda,vulkan (both) or none" in done.stderr
    assert not (tmp_path / ".venv").exists()


def test_a_python_that_is_too_old_is_one_line(tmp_path: Path) -> None:
    """It cannot even read deploy/setup.py."""
    copied(tmp_path)
    old = tmp_path / "old python"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    done = subprocess.run(
        ["make", "setup", f"PYTHON={old}"],
        env={name: value for name, value in os.environ.items() if not name.startswith("MAKE")},
        cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert done.stdout.startswith(
        f"[setup] Python 3.11 or newer is needed, and PYTHON={old} is not"
    )
    assert "Traceback" not in done.stderr


def test_an_environment_half_made_or_moved_is_made_anew(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = tmp_path / "a clone" / ".venv"
    monkeypatch.setattr(setup, "VENV", here)
    assert not setup.is_whole()
    program(here / "bin" / "python", "")
    (here / "pyvenv.cfg").write_text(f"home = /usr/bin\ncommand = python3 -m venv {here}\n")
    assert setup.is_whole()
    monkeypatch.setattr(setup, "VENV", here.parent.rename(tmp_path / "elsewhere") / ".venv")
    assert not setup.is_whole()
    (setup.VENV / "pyvenv.cfg").write_text(f"command = python3 -m venv {setup.VENV}\n")
    assert setup.is_whole()
    (setup.VENV / "bin" / "python").write_text("#!/bin/sh\nexit 1\n")
    assert not setup.is_whole(), "stopped before pip was in it"


def test_without_a_home_that_can_be_written_the_clone_keeps_the_cache(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "not" / "there yet"))
    assert setup.cache_folder() == tmp_path / "not" / "there yet" / "hearth"
    own = ROOT / ".hearth" / "cache"
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda _path, _mode: False)
        assert setup.cache_folder() == own
    monkeypatch.setenv("HOME", "~")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert setup.cache_folder() == own


def test_a_long_step_says_how_far_it_is(setup: ModuleType, tmp_path: Path) -> None:
    compiling = setup.waiting.Compiling(tmp_path / "build", 84)
    assert compiling.line(40) == "fetching llama.cpp and what compiles it, 40 s"
    (tmp_path / "build" / "a").mkdir(parents=True)
    for number in range(21):
        (tmp_path / "build" / "a" / f"{number}.o").touch()
    compiling.line(42)
    assert compiling.line(62) == "compiling [####            ] 21/84  62 s, about 60 s left"


LOCKED = """version = 1
[[package]]
name = "other"
version = "1"
[[package]]
name = "llama-cpp-python"
version = "0.3.36"
sdist = { url = "https://x/llama_cpp_python-0.3.36.tar.gz", hash = "sha256:HASH" }
"""


def test_a_wheel_is_kept_by_its_sources_and_settings(tmp_path: Path) -> None:
    wheel = _module("wheel")
    lock, folder = tmp_path / "uv.lock", tmp_path / "wheels"
    lock.write_text(LOCKED)
    assert wheel.locked(lock) == ("0.3.36", "HASH")
    place, found = wheel.kept_wheel(folder, lock, {"a": "1", "b": "2"})
    assert found is None
    place.mkdir(parents=True)
    (place / "llama_cpp_python-0.3.36-py3-none-linux_x86_64.whl").touch()
    _, found = wheel.kept_wheel(folder, lock, {"b": "2", "a": "1"})
    assert found == place / "llama_cpp_python-0.3.36-py3-none-linux_x86_64.whl"
    assert wheel.kept_wheel(folder, lock, {"a": "1", "b": "3"})[1] is None
    lock.write_text(LOCKED.replace("HASH", "OTHER"))
    assert wheel.kept_wheel(folder, lock, {"a": "1", "b": "2"})[1] is None


@pytest.mark.parametrize("works", [True, False])
def test_pip_builds_what_the_lock_names(tmp_path: Path, works: bool) -> None:
    """The interpreter is played: it writes down what it was asked for, and makes a wheel, or fails."""
    wheel = _module("wheel")
    lock, place = tmp_path / "uv.lock", tmp_path / "wheels" / "key"
    lock.write_text(LOCKED)
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\n"
        f'echo "$@" > {tmp_path}/words\n'
        f'echo "$CMAKE_ARGS $SKBUILD_BUILD_DIR $SKBUILD_NINJA_MAKE_FALLBACK" > {tmp_path}/told\n'
        f"cp $(dirname {tmp_path}/wheels/*/requirements.txt)/requirements.txt {tmp_path}/wanted\n"
        + (f"touch $(dirname {tmp_path}/wheels/*/requirements.txt)/a-1-py3-none-any.whl\n" if works else "exit 3\n")
    )  # fmt: skip
    python.chmod(0o755)
    settings = {
        "cmake.define.GGML_RPC": "ON", "cmake.define.CMAKE_C_FLAGS": "-a -b", "build-dir": "/b", "ninja.make-fallback": "false",
    }  # fmt: skip
    done = wheel.build(python, place, lock, settings, os.environ | {"CMAKE_ARGS": "-DOWN=1"})
    assert (done.returncode == 0) == works
    words = (tmp_path / "words").read_text()
    assert "--no-binary llama-cpp-python" in words
    told = "-DGGML_RPC=ON '-DCMAKE_C_FLAGS=-a -b' -DOWN=1 /b false\n"
    assert (tmp_path / "told").read_text() == told
    assert (tmp_path / "wanted").read_text() == "llama-cpp-python==0.3.36 --hash=sha256:HASH\n"
    assert [p.name for p in place.glob("*")] == (["a-1-py3-none-any.whl"] if works else [])
    assert sorted(p.name for p in (tmp_path / "wheels").glob("*")) == (["key"] if works else [])
