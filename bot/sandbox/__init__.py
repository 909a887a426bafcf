"""Platforms played on loopback: the stage of `hearth demo` and the double for the tests."""

from bot.sandbox.app import (
    Stage,
    build_stage,
    dingtalk_stage_config,
    stage_config,
    wecom_stage_config,
)
from bot.sandbox.dingtalk import DingTalkSandbox
from bot.sandbox.feishu import FeishuSandbox, SandboxConfig
from bot.sandbox.wecom import WeComConfig, WeComSandbox

__all__ = [
    "DingTalkSandbox",
    "FeishuSandbox",
    "SandboxConfig",
    "Stage",
    "WeComConfig",
    "WeComSandbox",
    "build_stage",
    "dingtalk_stage_config",
    "stage_config",
    "wecom_stage_config",
]
