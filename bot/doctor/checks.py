"""The list of all checks, in the order in which they are shown. A new check is entered here and nowhere else."""

from __future__ import annotations

from typing import Final

from bot.doctor import bots
from bot.doctor.build import look_at_build
from bot.doctor.cards import look_at_heat, look_at_nvidia
from bot.doctor.configuration import look_at_config, look_at_time_zone
from bot.doctor.database import look_at_database
from bot.doctor.disk import look_at_database_folder, look_at_kv_folders
from bot.doctor.findings import Check
from bot.doctor.machine import look_at_clock, look_at_kernel_log, look_at_machine
from bot.doctor.memory import look_at_plan, look_at_ram
from bot.doctor.memtest import look_at_vram
from bot.doctor.models import look_at_models
from bot.doctor.patient import Patient
from bot.doctor.ports import look_at_port

MACHINE: Final[tuple[Check, ...]] = (
    Check("config", look_at_config),
    Check("config", look_at_time_zone),
    Check("machine", look_at_machine),
    Check("machine", look_at_clock),
    Check("llama.cpp", look_at_build),
    Check("graphics", look_at_nvidia),
    Check("graphics", look_at_heat),
    Check("model", look_at_models),
    Check("memory", look_at_ram),
    Check("memory", look_at_plan),
    Check("disk", look_at_database_folder),
    Check("disk", look_at_kv_folders),
    Check("database", look_at_database),
    Check("port", look_at_port),
    Check("kernel log", look_at_kernel_log),
)
# `hearth doctor --vram-test`: takes long, so only when asked.
VRAM: Final[tuple[Check, ...]] = (Check("VRAM", look_at_vram),)
# `hearth doctor --bot NAME`: credentials, scopes, callbacks of one bot.
BOT: Final[tuple[Check, ...]] = bots.CHECKS


def checks_for(patient: Patient) -> tuple[Check, ...]:
    """What is looked at: everything of the machine, or one bot."""
    if patient.bot:
        return BOT
    return MACHINE + VRAM if patient.vram_test else MACHINE
