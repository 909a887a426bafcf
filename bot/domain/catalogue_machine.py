"""The texts about this machine's memory and cards and the bots' connections, for admins, in both languages. `bot.domain.catalogue` hands them out."""

from __future__ import annotations

from typing import Final

ZH: Final = {
    "status.lacks": "仅管理员可见：{what}",
    "status.connected": "长连接 {bot}：自 {since} 起已连接",
    "status.connected_elsewhere": "长连接 {bot}：由进程 {holder} 连接，本进程自 {since} 起待命",
    "status.deaf": "⚠ 长连接 {bot}：自 {since} 起断开（{reason}），正在重试",
    "status.calls": "{bot} 本月调用次数：{calls}{why}",
    "machine.memory": "内存：可用 {free} / {total}，交换区已用 {swap}",
    "machine.engine": "引擎：占用 {rss}（峰值 {peak}），其中在交换区 {swap}",
    "machine.card": "{card}：显存已用 {used} / {total}{details}",
    "machine.detail.engine": "，其中引擎 {size}",
    "machine.detail.shared": "，共享内存 {size}",
    "machine.detail.temperature": "，{degrees} °C",
    "machine.detail.clock": "，{mhz} MHz",
    "machine.warning.ram_low": "⚠ 可用内存只剩 {free}（应至少留 {limit}）：请关闭其他程序",
    "machine.warning.vram_low": "⚠ {about} 只剩 {free} 显存（应至少留 {limit}）：别的程序在用显卡，或规划过紧",
    "machine.warning.engine_swapped": "⚠ 引擎 {about} 有 {used} 被换出到磁盘：回答会变慢，内存不够用",
    "machine.warning.swap_grows": "⚠ 交换区一分钟内增加了 {grown}：内存紧张",
    "machine.warning.shared_memory": "⚠ {about} 在用系统内存代替显存（{used}）：慢 4 到 10 倍，请减少放在显卡上的层",
    "machine.warning.throttled": "⚠ {about} 正在降频：{reasons}（{temperature}）",
}

EN: Final = {
    "status.lacks": "For admins: {what}",
    "status.connected": "Long connection of {bot}: up since {since}",
    "status.connected_elsewhere": "Long connection of {bot}: held by process {holder}; this one waits since {since}",
    "status.deaf": "⚠ Long connection of {bot}: down since {since} ({reason}); it is tried again",
    "status.calls": "Calls of {bot} this month: {calls}{why}",
    "machine.memory": "Memory: {free} of {total} available, {swap} of swap in use",
    "machine.engine": "Engine: {rss} (peak {peak}), {swap} of it in swap",
    "machine.card": "{card}: {used} of {total} in use{details}",
    "machine.detail.engine": ", {size} by the engine",
    "machine.detail.shared": ", {size} of shared memory",
    "machine.detail.temperature": ", {degrees} °C",
    "machine.detail.clock": ", {mhz} MHz",
    "machine.warning.ram_low": "⚠ Only {free} of memory are available (margin {limit}): close other programs",
    "machine.warning.vram_low": "⚠ Only {free} are free on {about} (margin {limit}): other programs use the card, or the plan is too tight",
    "machine.warning.engine_swapped": "⚠ {used} of the engine {about} are in swap: answers become slow, it needs more RAM",
    "machine.warning.swap_grows": "⚠ Swap in use grew by {grown} within a minute: memory is short",
    "machine.warning.shared_memory": "⚠ {about} uses system memory in place of its own ({used}): 4 to 10 times slower; put fewer layers on it",
    "machine.warning.throttled": "⚠ {about} lowers its clocks: {reasons} ({temperature})",
}
