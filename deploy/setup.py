"""Set up Hearth's virtual environment: `make setup`. Needs only Python >= 3.11 with venv, and a C++ compiler.

Standard library only: this runs before anything is installed. It bootstraps uv into `.venv`, then lets uv install the
locked packages. llama-cpp-python is compiled from its sdist; the wheel goes to uv's cache under a key made of this CPU's
instruction set and the build options, so a second clone on the same kind of machine takes seconds, and a cache copied to
an older CPU is not used there (it would die of SIGILL).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
UV_VERSION = "0.13.9"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hearth"
# Objects that Ninja compiles with deploy/build/llama.cmake on a CPU-only build; only the progress line uses it.
CPU_BUILD_OBJECTS = 84
# Virtual machines announce AMX that their host does not carry: such a build dies of SIGILL at the first decode.
WITHOUT_AMX = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
CMAKE_DEFINES = {
    "GGML_RPC": "ON",
    "LLAVA_BUILD": "OFF",
    "LLAMA_BUILD_TOOLS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_SERVER": "OFF",
    "LLAMA_BUILD_APP": "OFF",
}


def say(text: str) -> None:
    print(f"[setup] {text}", flush=True)


def fail(text: str) -> None:
    sys.exit(f"[setup] {text}")


def check_prerequisites() -> None:
    """One clear line for each thing that is missing."""
    if not sys.platform.startswith("linux"):
        fail("Hearth runs on Linux (WSL2 on Windows works); this system is not supported.")
    if sys.version_info < (3, 11):  # noqa: UP036 - an older Python may well run this file
        fail(
            f"Python 3.11 or newer is needed; {sys.executable} is {platform.python_version()}. Try: make setup PYTHON=python3.12"
        )
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        fail("Python's venv module is missing. On Debian or Ubuntu: sudo apt install python3-venv")
    compiler = os.environ.get("CXX") or next(
        (c for c in ("c++", "g++", "clang++") if shutil.which(c)), None
    )
    if not compiler or not shutil.which(compiler.split()[0]):
        fail(
            "A C++ compiler is needed to build llama.cpp and none was found. On Debian or Ubuntu: sudo apt install build-essential"
        )


def cpu_key() -> str:
    """A short key of this CPU's instruction set and of the options that change the build."""
    flags = ""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                flags = " ".join(sorted(line.split(":", 1)[1].split()))
                break
    text = "|".join(
        [platform.machine(), flags, os.environ.get("CMAKE_ARGS", ""), os.environ.get("CXX", "")]
    )
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def compiler_flags() -> str:
    """Flags for llama.cpp beyond its own; nothing where the compiler does not know them."""
    if platform.machine() not in {"x86_64", "AMD64"}:
        return ""
    compiler = (os.environ.get("CXX") or "c++").split()
    probe = [*compiler, *WITHOUT_AMX.split(), "-E", "-x", "c++", os.devnull]
    known = subprocess.run(probe, capture_output=True, check=False).returncode == 0
    return WITHOUT_AMX if known else ""


def bootstrap_uv() -> Path:
    """Create `.venv` and put uv into it. Returns uv's path."""
    uv = VENV / "bin" / "uv"
    if not (VENV / "bin" / "python").exists():
        say(f"creating {VENV} with Python {platform.python_version()}")
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    have = (
        subprocess.run([str(uv), "--version"], capture_output=True, text=True, check=False).stdout
        if uv.exists()
        else ""
    )
    if UV_VERSION not in have:
        say(f"installing uv {UV_VERSION}")
        pip = [
            str(VENV / "bin" / "python"),
            "-m",
            "pip",
            "--disable-pip-version-check",
            "install",
            "-q",
        ]
        subprocess.run([*pip, f"uv=={UV_VERSION}"], check=True)
    return uv


def build_settings(key: str) -> tuple[dict[str, str], Path]:
    """uv's config settings for llama-cpp-python, and the folder in which its objects appear.

    The CMake file is copied to a path that does not depend on the clone, since uv's cache key contains these settings.
    """
    source = (ROOT / "deploy" / "build" / "llama.cmake").read_bytes()
    include = CACHE / f"llama-{hashlib.sha256(source).hexdigest()[:12]}.cmake"
    include.parent.mkdir(parents=True, exist_ok=True)
    if not include.exists():
        partial = include.with_suffix(f".{os.getpid()}")
        partial.write_bytes(source)
        partial.replace(include)
    build_dir = CACHE / "build" / key
    settings = {f"cmake.define.{name}": value for name, value in CMAKE_DEFINES.items()}
    settings["cmake.define.CMAKE_PROJECT_llama_cpp_INCLUDE"] = str(include)
    settings["cmake.define.HEARTH_CPU"] = key
    if flags := compiler_flags():
        settings["cmake.define.CMAKE_C_FLAGS"] = settings["cmake.define.CMAKE_CXX_FLAGS"] = flags
    settings["ninja.make-fallback"] = "false"
    settings["build-dir"] = str(build_dir)
    return settings, build_dir


class Progress(threading.Thread):
    """Prints how far the llama.cpp build is, by counting its object files, with an estimate of what is left."""

    def __init__(self, build_dir: Path) -> None:
        super().__init__(daemon=True)
        self.build_dir = build_dir
        self.over = threading.Event()
        self.built_s = 0.0

    def run(self) -> None:
        started, last_line = None, 0.0
        while not self.over.wait(1):
            done = sum(1 for _ in self.build_dir.rglob("*.o")) if self.build_dir.exists() else 0
            if not done:
                continue
            started = started or time.monotonic()
            elapsed = self.built_s = time.monotonic() - started
            total = max(CPU_BUILD_OBJECTS, done + 1)
            left = elapsed / done * (total - done)
            if time.monotonic() - last_line >= (2 if sys.stdout.isatty() else 20):
                last_line = time.monotonic()
                end = "\r" if sys.stdout.isatty() else "\n"
                bar = "#" * (30 * done // total)
                print(
                    f"[setup] building llama.cpp [{bar:<30}] {done}/{total}  {elapsed:4.0f} s, about {left:.0f} s left   ",
                    end=end,
                    flush=True,
                )


def install(uv: Path) -> None:
    key = cpu_key()
    settings, build_dir = build_settings(key)
    command = [
        str(uv),
        "sync",
        "--locked",
        "--python",
        str(VENV / "bin" / "python"),
        "--no-progress",
    ]
    for name, value in settings.items():
        command += ["--config-settings-package", f"llama-cpp-python:{name}={value}"]
    environment = {
        **os.environ,
        "VIRTUAL_ENV": str(VENV),
        "UV_PROJECT_ENVIRONMENT": str(VENV),
        "CMAKE_BUILD_PARALLEL_LEVEL": os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL")
        or str(os.cpu_count() or 2),
    }
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "setup.lock").open("w") as lock:
        fcntl.flock(
            lock, fcntl.LOCK_EX
        )  # two clones at once share one build instead of fighting over its folder
        shutil.rmtree(build_dir, ignore_errors=True)
        say(
            "installing packages; the first time on this machine llama.cpp is compiled (3 to 9 minutes), later it is reused"
        )
        progress = Progress(build_dir)
        progress.start()
        result = subprocess.run(
            command, env=environment, cwd=ROOT, check=False, capture_output=True, text=True
        )
        progress.over.set()
        progress.join()
        shutil.rmtree(build_dir, ignore_errors=True)
    if result.returncode:
        log = CACHE / "setup-error.log"
        log.write_text(result.stdout + result.stderr)
        tail = "\n".join((result.stdout + result.stderr).strip().splitlines()[-25:])
        fail(f"uv could not install the packages; the whole output is in {log}, its end:\n{tail}")
    if progress.built_s:
        say(f"llama.cpp built in {progress.built_s:.0f} s")


def main() -> None:
    stamp = VENV / ".hearth-setup"
    lock_bytes = (
        (ROOT / "uv.lock").read_bytes()
        + (ROOT / "pyproject.toml").read_bytes()
        + Path(__file__).read_bytes()
    )
    wanted = hashlib.sha256(lock_bytes).hexdigest() + " " + cpu_key()
    if stamp.exists() and stamp.read_text() == wanted and "--force" not in sys.argv:
        return
    started = time.monotonic()
    check_prerequisites()
    uv = bootstrap_uv()
    install(uv)
    stamp.write_text(wanted)
    say(f"ready after {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        fail("stopped; run the same command again to go on")
    except subprocess.CalledProcessError as error:
        fail(f"this step failed with exit code {error.returncode}: {' '.join(map(str, error.cmd))}")
