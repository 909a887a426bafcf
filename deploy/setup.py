"""Set up Hearth's virtual environment: `make setup`. Needs only Python >= 3.11 with venv, and a C++ compiler.

Standard library only: this runs before anything is installed. It bootstraps uv into `.venv`, then lets uv install the
locked packages. llama-cpp-python is compiled from its sdist (deploy/wheel.py); the wheel is kept under a key made of this
CPU's instruction set and the build options, so a second clone on the same kind of machine takes seconds, and a cache copied
to an older CPU is not used there (it would die of SIGILL). `GPU=cuda`, `vulkan` or `cuda,vulkan` in the environment asks for a
build that drives a card; this clone keeps to it until `GPU=none`.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, NoReturn

import gpu
import waiting
import wheel

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
LOCK = ROOT / "uv.lock"
UV_VERSION = "0.13.9"
# What this clone was last built for: the definitions for CMake, so that later runs need not look for cards again.
CHOICE = VENV / ".hearth-gpu"


def cache_folder() -> Path:
    """Where compiled wheels are kept: the user's cache folder, or one in this clone where that cannot be written."""
    own = ROOT / ".hearth" / "cache"
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hearth"
        nearest = next(place for place in (folder, *folder.parents) if place.exists())
    except (RuntimeError, OSError):  # nobody says where the home is, or it may not be looked into
        return own
    return folder if os.access(nearest, os.W_OK | os.X_OK) else own


CACHE = cache_folder()
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


def fail(text: str) -> NoReturn:
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
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        fail(
            f"Python's venv module is missing. On Debian or Ubuntu: sudo apt install python{version}-venv"
        )
    compiler = os.environ.get("CXX") or next(
        (c for c in ("c++", "g++", "clang++") if shutil.which(c)), None
    )
    if not compiler or not shutil.which(compiler.split()[0]):
        fail(
            "A C++ compiler is needed to build llama.cpp and none was found. On Debian or Ubuntu: sudo apt install build-essential"
        )


def gpu_defines() -> dict[str, str]:
    """CMake's definitions for the GPU that was asked for, or that this clone was built for before."""
    asked = os.environ.get("GPU", "")
    if not asked:
        return json.loads(CHOICE.read_text()) if CHOICE.exists() else {}
    try:
        kinds = gpu.parse(asked)
    except ValueError as error:
        fail(str(error))
    machine = gpu.Machine()
    if lacking := gpu.missing(kinds, machine):
        fail(lacking)
    return gpu.defines(kinds, machine)


def build_key(for_gpu: dict[str, str]) -> str:
    """A short key of this CPU's instruction set and of the options that change the build."""
    flags = ""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                flags = " ".join(sorted(line.split(":", 1)[1].split()))
                break
    parts = [platform.machine(), flags, os.environ.get("CMAKE_ARGS", ""), os.environ.get("CXX", "")]
    text = "|".join([*parts, *(f"{name}={value}" for name, value in sorted(for_gpu.items()))])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def compiler_flags() -> str:
    """Flags for llama.cpp beyond its own; nothing where the compiler does not know them."""
    if platform.machine() not in {"x86_64", "AMD64"}:
        return ""
    compiler = (os.environ.get("CXX") or "c++").split()
    probe = [*compiler, *WITHOUT_AMX.split(), "-E", "-x", "c++", os.devnull]
    known = subprocess.run(probe, capture_output=True, check=False).returncode == 0
    return WITHOUT_AMX if known else ""


def is_whole() -> bool:
    """Whether `.venv` was made for this folder, which may have been moved since, and to its end."""
    python, settings = VENV / "bin" / "python", VENV / "pyvenv.cfg"
    if not python.exists() or not settings.exists() or f" {VENV}\n" not in settings.read_text():
        return False
    return subprocess.run([python, "-c", "import pip"], capture_output=True, check=False).returncode == 0  # fmt: skip


def bootstrap_uv() -> Path:
    """Create `.venv` and put uv into it. Returns uv's path."""
    uv, python = VENV / "bin" / "uv", VENV / "bin" / "python"
    if not is_whole():
        what = f"creating {VENV} with Python {platform.python_version()}"
        # Its output is kept back: interrupted, it ends with a traceback.
        run([sys.executable, "-m", "venv", "--clear", str(VENV)], f"{VENV} could not be made", what)
    have = (
        subprocess.run([str(uv), "--version"], capture_output=True, text=True, check=False).stdout
        if uv.exists()
        else ""
    )
    if UV_VERSION not in have:
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "-q"]
        run([*pip, f"uv=={UV_VERSION}"], f"uv {UV_VERSION} could not be installed", f"installing uv {UV_VERSION}")  # fmt: skip
    return uv


def build_settings(key: str, for_gpu: dict[str, str]) -> tuple[dict[str, str], Path]:
    """The build's config settings for llama-cpp-python, and the folder in which its objects appear.

    The CMake file is copied to a path that does not depend on the clone, since the wheel's key contains these settings.
    """
    source = (ROOT / "deploy" / "build" / "llama.cmake").read_bytes()
    include = CACHE / f"llama-{hashlib.sha256(source).hexdigest()[:12]}.cmake"
    include.parent.mkdir(parents=True, exist_ok=True)
    if not include.exists():
        partial = include.with_suffix(f".{os.getpid()}")
        partial.write_bytes(source)
        partial.replace(include)
    build_dir = CACHE / "build" / key
    settings = {f"cmake.define.{name}": value for name, value in (CMAKE_DEFINES | for_gpu).items()}
    settings["cmake.define.CMAKE_PROJECT_llama_cpp_INCLUDE"] = str(include)
    settings["cmake.define.HEARTH_CPU"] = key
    if flags := compiler_flags():
        settings["cmake.define.CMAKE_C_FLAGS"] = settings["cmake.define.CMAKE_CXX_FLAGS"] = flags
    settings["ninja.make-fallback"] = "false"
    settings["build-dir"] = str(build_dir)
    return settings, build_dir


def n_objects(for_gpu: dict[str, str]) -> int:
    """About how many object files a build makes."""
    more = sum(n for kind, n in gpu.MORE_OBJECTS.items() if f"GGML_{kind.upper()}" in for_gpu)
    return CPU_BUILD_OBJECTS + more


def install(uv: Path, for_gpu: dict[str, str]) -> None:
    """The locked packages, and llama-cpp-python as it was built here for these options."""
    python = VENV / "bin" / "python"
    environment = {
        **os.environ,
        "VIRTUAL_ENV": str(VENV),
        "UV_PROJECT_ENVIRONMENT": str(VENV),
        "CMAKE_BUILD_PARALLEL_LEVEL": os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL")
        or str(os.cpu_count() or 2),
    }
    if CACHE.is_relative_to(ROOT):
        say(f"your cache folder cannot be written: what is compiled and fetched is kept in {CACHE}")
        environment["UV_CACHE_DIR"] = str(CACHE / "uv")
    built = llama_wheel(python, for_gpu, environment)
    sync = [str(uv), "sync", "--locked", "--python", str(python), "--no-progress"]
    failed = "uv could not install the packages"
    run([*sync, "--no-install-package", wheel.PACKAGE], failed, "installing packages", environment)
    # Without the project's settings, which ask for a source distribution.
    add = [
        str(uv),
        "pip",
        "install",
        "--no-config",
        "--python",
        str(python),
        "--no-deps",
        "--no-index",
    ]
    add += ["--reinstall-package", wheel.PACKAGE, "--find-links", str(built.parent)]
    run([*add, f"{wheel.PACKAGE}=={wheel.locked(LOCK)[0]}"], failed, environment=environment)


def run(
    command: list[str], failed: str, what: str = "", environment: dict[str, str] | None = None
) -> None:
    """Run a step; say `what` it is, then that it still runs, and what `failed` with the end of its output."""
    if what:
        say(what)
    with waiting.Waiting(what) if what else contextlib.nullcontext():
        done = subprocess.run(
            command, env=environment, cwd=ROOT, check=False, capture_output=True, text=True
        )
    check(done, failed)


def check(done: subprocess.CompletedProcess[str], what: str) -> None:
    """Stop with the end of its output where a step failed."""
    if done.returncode:
        log = CACHE / "setup-error.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(done.stdout + done.stderr)
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-25:])
        fail(f"{what}; the whole output is in {log}, its end:\n{tail}")


def wait_for(lock: IO[str]) -> None:
    """Lock the file; while somebody else has it, say that this is waited for."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        what = "waiting for another setup on this machine, which compiles llama.cpp"
        say(what)
        with waiting.Waiting(what):
            fcntl.flock(lock, fcntl.LOCK_EX)


def llama_wheel(python: Path, for_gpu: dict[str, str], environment: dict[str, str]) -> Path:
    """The wheel for these options; compiled now if this machine has none. Two clones at once share one build."""
    settings, build_dir = build_settings(build_key(for_gpu), for_gpu)
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "setup.lock").open("w") as lock:
        wait_for(lock)
        place, found = wheel.kept_wheel(CACHE / "wheels", LOCK, settings)
        if found:
            return found
        say("compiling llama.cpp, once on this machine (3 to 9 minutes, longer for a GPU)")
        shutil.rmtree(build_dir, ignore_errors=True)
        began = time.monotonic()
        try:
            with waiting.Compiling(build_dir, n_objects(for_gpu)):
                done = wheel.build(python, place, LOCK, settings, environment)
        finally:
            shutil.rmtree(build_dir, ignore_errors=True)
        check(done, "llama.cpp could not be compiled")
        say(f"llama.cpp compiled in {time.monotonic() - began:.0f} s")
        _, found = wheel.kept_wheel(CACHE / "wheels", LOCK, settings)
    if found is None:
        fail("pip said that it built llama-cpp-python, and there is no wheel")
    return found


def main() -> None:
    stamp = VENV / ".hearth-setup"
    lock_bytes = (
        LOCK.read_bytes()
        + (ROOT / "pyproject.toml").read_bytes()
        + Path(__file__).read_bytes()
        + Path(gpu.__file__).read_bytes()
        + Path(wheel.__file__).read_bytes()
        + Path(waiting.__file__).read_bytes()
    )
    for_gpu = gpu_defines()
    # A virtual environment knows its own path: in a folder that was moved, its programs do not start.
    wanted = f"{hashlib.sha256(lock_bytes).hexdigest()} {build_key(for_gpu)} {VENV}"
    if stamp.exists() and stamp.read_text() == wanted and "--force" not in sys.argv:
        return
    started = time.monotonic()
    check_prerequisites()
    uv = bootstrap_uv()
    install(uv, for_gpu)
    CHOICE.write_text(json.dumps(for_gpu))
    stamp.write_text(wanted)
    say(f"ready after {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        fail("stopped; run the same command again to go on")
    except OSError as error:
        fail(
            f"{error.filename or 'this machine'}: {error.strerror}; mend that and run the same command again"
        )
