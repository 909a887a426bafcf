"""Names a process as a person knows it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from bot.doctor.patient import Patient

_LONGEST: Final = 60
# Arguments that may be secrets: what follows them is left out.
_SECRET = re.compile(r"(?i)(--?\S*(key|secret|token|password)\S*?)[= ]\S+")


def name_process(pid: int, patient: Patient) -> str:
    """ "process 4711 (hearth serve --config config.toml)"."""
    words = patient.read(f"proc/{pid}/cmdline").split("\0")
    line = " ".join(Path(word).name if n < 2 else word for n, word in enumerate(words)).strip()
    line = _SECRET.sub(r"\1 …", line) or patient.read(f"proc/{pid}/comm").strip()
    if len(line) > _LONGEST:
        line = line[: _LONGEST - 1] + "…"
    return f"process {pid} ({line})" if line else f"process {pid}"
