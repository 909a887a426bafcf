"""Builds llama-cpp-python once per machine and set of options, and keeps the wheel where nothing else puts it away.

uv's own cache would do where the package index sends caching headers, as pypi.org does. Behind a mirror that sends none, any
look at the sdist (`uv lock`, a build with other options) makes uv fetch it anew under another name, and every wheel that
was built from it before is lost: the next clone compiles for minutes. So pip builds it, once, into a folder of ours.
Standard library only.
"""

from __future__ import annotations

import hashlib
import shlex
import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path

PACKAGE = "llama-cpp-python"


def locked(lock: Path) -> tuple[str, str]:
    """The version of the package in uv.lock, and the SHA-256 of its sdist."""
    packages = tomllib.loads(lock.read_text(encoding="utf-8"))["package"]
    package = next(package for package in packages if package["name"] == PACKAGE)
    return package["version"], package["sdist"]["hash"].removeprefix("sha256:")


def kept_wheel(folder: Path, lock: Path, settings: Mapping[str, str]) -> tuple[Path, Path | None]:
    """The folder for the wheel of these sources and settings, and the wheel if it was built before."""
    version, sha256 = locked(lock)
    text = "|".join([version, sha256, *(f"{name}={settings[name]}" for name in sorted(settings))])
    place = folder / hashlib.sha256(text.encode()).hexdigest()[:16]
    return place, next(iter(sorted(place.glob("*.whl"))), None)


def environment_of(settings: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """The settings as scikit-build-core reads them from the environment: pip's --config-settings do not reach a package
    that is named in a file before pip 24, and its checksum can be named in a file only."""
    prefix = "cmake.define."
    defines = [
        shlex.quote(f"-D{name.removeprefix(prefix)}={value}")
        for name, value in settings.items()
        if name.startswith(prefix)
    ]
    others = {
        "SKBUILD_" + name.upper().replace(".", "_").replace("-", "_"): value
        for name, value in settings.items()
        if not name.startswith(prefix)
    }
    own = environment.get("CMAKE_ARGS", "")
    return {**environment, **others, "CMAKE_ARGS": " ".join([*defines, own]).strip()}


def build(
    python: Path,
    place: Path,
    lock: Path,
    settings: Mapping[str, str],
    environment: Mapping[str, str],
) -> subprocess.CompletedProcess[str]:
    """Fetch the sdist, whose checksum must be that of uv.lock, and compile it; the wheel then lies in `place`."""
    version, sha256 = locked(lock)
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent) as folder:
        wanted = Path(folder) / "requirements.txt"
        wanted.write_text(f"{PACKAGE}=={version} --hash=sha256:{sha256}\n", encoding="utf-8")
        command = [
            str(python), "-m", "pip", "--disable-pip-version-check", "wheel", "--no-deps", "--no-cache-dir",
            "--no-binary", PACKAGE, "--wheel-dir", folder, "-r", str(wanted),
        ]  # fmt: skip
        done = subprocess.run(
            command,
            env=environment_of(settings, environment),
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode == 0:
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            for wheel in Path(folder).glob("*.whl"):
                wheel.replace(place / wheel.name)
    return done
