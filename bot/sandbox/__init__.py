"""Platforms played on loopback: the stage of `hearth demo` and the double for the tests. Import from bot.sandbox.feishu."""
