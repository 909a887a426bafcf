"""Platforms played on loopback: the stage of `hearth demo` and the double for the tests."""

from bot.sandbox.app import Stage, build_stage, stage_config
from bot.sandbox.feishu import FeishuSandbox, SandboxConfig

__all__ = ["FeishuSandbox", "SandboxConfig", "Stage", "build_stage", "stage_config"]
