"""Every text that a person sees, in Chinese and English, in one place. Pure.

Both languages have every key with the same placeholders (tests/unit/bot/test_catalogue.py; only `place` and `ordinal`
stand for each other). No text speaks of errors' insides.
"""

from __future__ import annotations

from typing import Literal

from bot.domain import catalogue_commands, catalogue_documents, catalogue_machine

Language = Literal["zh", "en"]

_ZH: dict[str, str] = {
    # while a person waits
    "waiting.place": "排队中，第 {place} 位…",
    "waiting.reading": "正在阅读 {percent}%…",
    "waiting.thinking": "正在思考…",
    "waiting.loading": "模型正在加载，请稍候…",
    "waiting.restarting": "回答被打断，正在重新生成…",
    "summary.growing": "正在回答…",
    # why a reply ended, in one sentence under the text
    "end.stopped": "已停止。",
    "end.length": "回答达到长度上限，已截断；发 /continue 或“继续”可接着写。",
    "end.empty": "模型这次没有给出回答。可以发 /retry 重试，或换个说法。",
    "end.no_more": "回答到这里已经完整了。",
    "end.failed": "抱歉，这次没能完成回答。请稍后发 /retry 重试。",
    "end.no_model": "抱歉，模型现在不可用。请稍后发 /retry 重试，或联系管理员。",
    "end.too_long": "抱歉，这条消息太长，模型一次读不完。请分成几段发送。",
    "end.system_fills": "抱歉，给模型的系统提示词几乎占满了它的窗口，没有地方放问题了。请管理员缩短 [chat] system_prompt（或用 /system 重置本会话的设定），"
    "或调大模型的 n_ctx。",
    "end.waited": "抱歉，排队的人太多，这个问题没能及时轮到。请稍后发 /retry 重试。",
    "end.line_full": "抱歉，现在排队的人太多。请过一会儿发 /retry 重试。",
    "end.too_many_own": "你还有 {n} 个问题在排队，这一个没有收下。请等它们答完再问。",
    "end.poison": "抱歉，这个问题每次都让模型异常退出，已不再重试。请换个说法再问，或发 /new 开始新话题。",
    "end.refused": "抱歉，平台没有接受这条回答，内容无法显示。请换个说法再问，或联系管理员。",
    "end.cut": "消息太长，中间一部分没有读到。",
    "end.restarted": "回答曾被打断，以上是重新生成的内容。",
    "end.possible_repeat": "（可能重复）",
    "restart.marker": "——（被打断，重新回答）——",
    # buttons and their answers
    "button.stop": "停止",
    "button.regenerate": "重新生成",
    "button.new_topic": "新话题",
    "button.continue": "继续",
    "toast.stopping": "正在停止",
    "toast.not_running": "这个回答已经结束了",
    "toast.not_yours": "只有提问者或管理员可以操作",
    "toast.regenerating": "正在重新生成",
    "toast.still_running": "还在回答中，请先停止",
    "toast.new_topic": "已开始新话题",
    "toast.continuing": "正在接着写",
    "toast.cannot_continue": "只能接着最后一个被截断的回答",
    "toast.gone": "这条消息已失效",
    "toast.refused": "你没有使用权限",
    "toast.unknown": "这个按钮无法识别",
    "toast.rate": "有点快，请等一分钟再试",
    # refusals and hints
    "hint.empty": "你好，我在。直接写下问题即可；发 /help 查看命令。",
    "hint.unknown_command": "没有 /{word} 这个命令。发 /help 查看全部命令。",
    "hint.attachments": "抱歉，我现在只能读文字，还看不了图片和文件。请用文字描述一下。",
    "hint.too_long": "消息太长了（{n_chars} 字，上限 {max_chars} 字）。请缩短或分几次发送。",
    "refused.stranger": "抱歉，你还没有使用权限。请把这个编号发给管理员：{person}",
    "refused.rate": "问得有点快，请等一分钟再发（每分钟最多 {per_minute} 条）。",
    "refused.day": "你今天的 {per_day} 个问题已经用完，明天零点后再问吧。",
    "greeting": "大家好，我是 {name}。@我 并写下问题即可，发 /help 查看命令。",
    "greeting.direct": "你好，我是 {name}。直接写下问题即可，发 /help 查看命令。",
    # commands
    "help": (
        "直接写下问题即可（群里请 @我）。命令：\n"
        "/help 帮助 — 显示本说明\n"
        "/new 新话题 — 开始新话题，之前的内容不再带入\n"
        "/reset 重置 — 同上，并立即清除之前内容的缓存和摘要\n"
        "/stop 停止 — 停止正在生成的回答\n"
        "/retry 重试 — 重新回答上一个问题\n"
        "/status 状态 — 模型、排队和上下文用量\n"
        "/whoami 我是谁 — 你的编号和身份\n"
        "/continue 继续 — 接着上一个被截断的回答\n"
        "/context 上下文 — 窗口里有什么，还剩多少\n"
        "/compact 压缩 — 把较早的内容压缩成摘要\n"
        "/summary 总结 [要求] — 总结刚发的文件或长文（没有就总结前面的对话），后台进行，可继续提问\n"
        "/history 历史 [n] — 最近 n 轮问答\n"
        "/export 导出 — 以 Markdown 导出本会话\n"
        "/forget 忘记 — 彻底删除本会话的内容；/forget last [n] 只删最近 n 轮\n"
        "/system 设定 [文字] — 查看或设定本会话给模型的要求；/system reset 取消\n"
        "/remind 提醒 10m 喝水 — 到时提醒（也可写 18:30、明天 9:00、2026-12-01 09:00）；/remind list 查看\n"
        "/schedule 定时 daily 09:00 问题 — 定时提问（仅管理员）；/schedule list 查看\n"
        "/missed 错过 — 我不在时群里聊了什么（管理员开启旁听的群）\n"
        "/ignore 别记我 — 群聊旁听不记录你说的话，已记录的删除；/ignore off 取消\n"
        "多人共享的会话里，/new 和 /reset 任何成员都可以用，对所有人生效；"
        "/stop、/retry、/forget last 只对自己的提问有效（管理员不限），/forget 和 /system 仅限管理员。"
    ),
    "new.done": "已开始新话题，之前的内容不再带入。",
    "reset.done": "已重置，之前的内容已从对话和缓存中清除。",
    "stop.done": "已停止。",
    "stop.nothing": "现在没有正在进行的回答。",
    "stop.not_yours": "正在进行的是别人的提问，只有提问者或管理员可以停止。",
    "retry.nothing": "还没有可以重试的问题。",
    "retry.running": "还在回答中。请等它结束，或先发 /stop。",
    "retry.not_yours": "上一个问题不是你问的，只有提问者或管理员可以重试。",
    "retry.done": "好的，重新回答上一个问题。",
    "status.model": "模型：{model}（{state}）",
    "status.step_back": "内存不足，已缩小运行：{what}",
    "status.plan": "启动时的显存/内存规划（仅管理员可见）：{plan}",
    "summarizer.ask": "下面是一段群聊记录。请用中文写一份简短摘要（不超过 {n} 字），只写事实：人名和各自负责什么、数字、日期、"
    "已作出的决定（若后来改变，只写最后的结果）、还没解决的问题。不要编造，不要评论。",
    "summarizer.before": "更早内容的摘要：",
    "summarizer.talk": "聊天记录：",
    "summarizer.now": "现在写摘要：",
    "summary.given": "以下是我们之前对话的摘要，供你参考：\n{text}",
    "summary.taken": "好的，我记住了。",
    "recall.given": "（以下是我们以前说过的原话，可能与下面的问题有关；说法不一时，以后说的为准）",
    "recall.quote": "- {who}（{when}，第 {n} 轮）：{text}",
    "recall.own": "你",
    "recall.answered": "{text} → 你的回答：{reply}",
    "status.reuse.window": "KV 复用：仅在滑动窗口内（更早处改动需重算）",
    "status.reuse.turn_ends": "KV 复用：仅在每轮结束处（该模型的状态无法从中间截断）",
    "status.idle": "排队：没有等待中的问题",
    "status.running": "排队：正在回答",
    "status.place": "排队：第 {place} 位",
    "status.tokens": "上下文：{used} / {window} tokens",
    "status.tokens_unknown": "上下文：窗口 {window} tokens",
    "status.policy": "会话：{policy}，第 {turns} 轮",
    "status.dropped": "最早的 {n} 轮已超出窗口，不再带入（记录仍保留）",
    "status.policy.per_user": "每人独立",
    "status.policy.shared": "全群共享",
    "status.policy.per_topic": "按话题",
    "status.state.starting": "加载中",
    "status.state.ready": "就绪",
    "status.state.restarting": "重启中",
    "status.state.failed": "不可用",
    "status.state.closed": "已关闭",
    "whoami": "编号：{person}\n身份：{role}",
    "role.admin": "管理员",
    "role.member": "成员",
    "role.stranger": "未授权",
    "role.denied": "已禁止",
    # what the model is told
    "prompt.name": "你的名字是“{name}”。",
    "prompt.shared": "这是多人共享的对话，每条消息开头的方括号里是发言者的名字；回答时不要加这样的前缀。",
    "prompt.date": "（现在是 {date}，{weekday}，{time}）",
    "prompt.weekdays": "星期一 星期二 星期三 星期四 星期五 星期六 星期日",
    "prompt.nobody": "用户{suffix}",
    "prompt.attachments": "（消息还带有你看不到的附件：{names}）",
    "prompt.cut": "……（中间部分过长，已省略）……",
    "attachment.image": "图片",
    "attachment.file": "文件",
    "attachment.audio": "语音",
    "attachment.video": "视频",
    "attachment.sticker": "表情",
    "attachment.other": "附件",
}  # fmt: skip

_EN: dict[str, str] = {
    "waiting.place": "You are {ordinal} in line…",
    "waiting.reading": "Reading {percent}%…",
    "waiting.thinking": "Thinking…",
    "waiting.loading": "The model is loading, one moment…",
    "waiting.restarting": "The answer was interrupted; starting it again…",
    "summary.growing": "Answering…",
    "end.stopped": "Stopped.",
    "end.length": "The answer reached its length limit and was cut; /continue goes on with it.",
    "end.empty": "The model gave no answer this time. Send /retry or put it differently.",
    "end.no_more": "The answer was complete already.",
    "end.failed": "Sorry, this answer could not be finished. Please send /retry in a while.",
    "end.no_model": "Sorry, the model is not available now. Please send /retry later or ask an admin.",
    "end.too_long": "Sorry, this message is too long for the model. Please send it in pieces.",
    "end.system_fills": "Sorry, the system prompt leaves no room in the model's window for a question. An admin can shorten [chat] system_prompt "
    "(or /system reset this conversation's own text) or raise the model's n_ctx.",
    "end.waited": "Sorry, too many were waiting, and the turn of this question did not come in time. Please send /retry later.",
    "end.line_full": "Sorry, too many questions are waiting just now. Please send /retry in a while.",
    "end.too_many_own": "{n} questions of yours are waiting already, so this one was not taken. Please ask again when they are answered.",
    "end.poison": "Sorry, the model crashed each time on this question, so it is not tried again. Please put it differently or send /new.",
    "end.refused": "Sorry, the platform did not take this answer, so it cannot be shown. Please put it differently or ask an admin.",
    "end.cut": "The message was too long; a part in its middle was not read.",
    "end.restarted": "The answer was interrupted; what you see was generated anew.",
    "end.possible_repeat": "(may be a repeat)",
    "restart.marker": "—— (interrupted, answering again) ——",
    "button.stop": "Stop",
    "button.regenerate": "Regenerate",
    "button.new_topic": "New topic",
    "button.continue": "Continue",
    "toast.stopping": "Stopping",
    "toast.not_running": "This answer has already ended",
    "toast.not_yours": "Only the asker or an admin can do this",
    "toast.regenerating": "Generating again",
    "toast.still_running": "Still answering; stop it first",
    "toast.new_topic": "A new topic has begun",
    "toast.continuing": "Going on",
    "toast.cannot_continue": "Only the last answer can go on, and only if it was cut",
    "toast.gone": "This message is no longer known",
    "toast.refused": "You may not use this bot",
    "toast.unknown": "This button is not known",
    "toast.rate": "That was quick: please wait a minute",
    "hint.empty": "Hello. Just write your question; /help shows the commands.",
    "hint.unknown_command": "There is no command /{word}. /help shows them all.",
    "hint.attachments": "Sorry, I can only read text so far, no images or files. Please describe it in words.",
    "hint.too_long": "This message is too long ({n_chars} characters, limit {max_chars}). Please shorten or split it.",
    "refused.stranger": "Sorry, you may not use this bot yet. Please give this id to an admin: {person}",
    "refused.rate": "That was quick: please wait a minute (at most {per_minute} messages a minute).",
    "refused.day": "Your {per_day} questions of today are used up; please ask again after midnight.",
    "greeting": "Hello, I am {name}. Mention me with your question; /help shows the commands.",
    "greeting.direct": "Hello, I am {name}. Just write your question; /help shows the commands.",
    "help": (
        "Just write your question (mention me in groups). Commands:\n"
        "/help — this text\n"
        "/new — begin a new topic; what was said before is left out\n"
        "/reset — the same, and caches and summaries of it are dropped at once\n"
        "/stop — stop the running answer\n"
        "/retry — answer the last question again\n"
        "/status — model, queue and use of the context\n"
        "/whoami — your id and role\n"
        "/continue — go on with the last answer where it was cut\n"
        "/context — what fills the window, and what is free\n"
        "/compact — put the older turns into a summary\n"
        "/summary [wish] — summarize the file or long text sent last (or else our talk), in the background: you can go on asking\n"
        "/history [n] — the last n questions and answers\n"
        "/export — this conversation as Markdown\n"
        "/forget — erase this conversation for good; /forget last [n] only its last turns\n"
        "/system [text] — show or set what the model is told in this conversation; /system reset removes it\n"
        "/remind 10m drink water — a reminder (also 18:30, tomorrow 9:00, 2026-12-01 09:00); /remind list\n"
        "/schedule daily 09:00 question — ask at fixed times (admins); /schedule list\n"
        "/missed — what was said while you were away (in groups I listen to)\n"
        "/ignore me — keep nothing of what I say to others, and erase what was kept; /ignore off takes it back\n"
        "In a shared conversation /new and /reset may be used by every member and hold for all; "
        "/stop, /retry and /forget last work on your own questions (admins: on any); /forget and /system are for admins there."
    ),
    "new.done": "A new topic has begun; what was said before is left out.",
    "reset.done": "Reset: what was said before is gone from the conversation and the caches.",
    "stop.done": "Stopped.",
    "stop.nothing": "No answer is running now.",
    "stop.not_yours": "The running answer is somebody else's; only the asker or an admin can stop it.",
    "retry.nothing": "There is no question to retry yet.",
    "retry.running": "Still answering. Wait for the end or send /stop first.",
    "retry.not_yours": "The last question was not yours; only the asker or an admin can retry it.",
    "retry.done": "All right, answering the last question again.",
    "status.model": "Model: {model} ({state})",
    "status.step_back": "Running smaller than set: {what}",
    "status.plan": "Memory plan made at the start (admins see this): {plan}",
    "summarizer.ask": "Below is a part of a group chat. Write a short summary in English (at most {n} words). Facts only: who "
    "does what, numbers, dates, decisions (where one was changed later, only the last one), and questions that are still "
    "open. Invent nothing and do not comment.",
    "summarizer.before": "Summary of what was said before:",
    "summarizer.talk": "The chat:",
    "summarizer.now": "Now write the summary:",
    "summary.given": "This is a summary of what we said before, for your reference:\n{text}",
    "summary.taken": "All right, I will keep it in mind.",
    "recall.given": "(Said earlier in this conversation, word for word, and perhaps about the question below. Where they "
    "differ, what was said later holds.)",
    "recall.quote": "- {who} ({when}, turn {n}): {text}",
    "recall.own": "You",
    "recall.answered": "{text} → your answer: {reply}",
    "status.reuse.window": "KV reuse: inside the sliding window only",
    "status.reuse.turn_ends": "KV reuse: at the ends of turns only (this model's state cannot be cut)",
    "status.idle": "Queue: nothing is waiting",
    "status.running": "Queue: answering now",
    "status.place": "Queue: place {place}",
    "status.tokens": "Context: {used} / {window} tokens",
    "status.tokens_unknown": "Context: a window of {window} tokens",
    "status.policy": "Conversation: {policy}, {turns} turns",
    "status.dropped": "The oldest {n} turns no longer fit and are left out (they stay on record)",
    "status.policy.per_user": "one per person",
    "status.policy.shared": "shared by the group",
    "status.policy.per_topic": "one per topic",
    "status.state.starting": "loading",
    "status.state.ready": "ready",
    "status.state.restarting": "restarting",
    "status.state.failed": "not available",
    "status.state.closed": "closed",
    "whoami": "Id: {person}\nRole: {role}",
    "role.admin": "admin",
    "role.member": "member",
    "role.stranger": "not allowed",
    "role.denied": "denied",
    "prompt.name": 'Your name is "{name}".',
    "prompt.shared": (
        "Several people share this conversation: the name in square brackets at the start of a message says who wrote it. "
        "Never begin your answer with such a name."
    ),
    "prompt.date": "(It is now {date}, {weekday}, {time})",
    "prompt.weekdays": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
    "prompt.nobody": "User {suffix}",
    "prompt.attachments": "(The message also carries attachments that you cannot see: {names})",
    "prompt.cut": "… (the middle was too long and is left out) …",
    "attachment.image": "image",
    "attachment.file": "file",
    "attachment.audio": "audio",
    "attachment.video": "video",
    "attachment.sticker": "sticker",
    "attachment.other": "attachment",
}  # fmt: skip

TEXTS: dict[Language, dict[str, str]] = {
    "zh": _ZH | catalogue_commands.ZH | catalogue_documents.ZH | catalogue_machine.ZH,
    "en": _EN | catalogue_commands.EN | catalogue_documents.EN | catalogue_machine.EN,
}


def say(language: Language, key: str, **values: object) -> str:
    """The text for a key. Raises KeyError for an unknown key or a missing value."""
    return TEXTS[language][key].format(**values)


def place_in_line(language: Language, place: int) -> str:
    """What a waiting person reads; place 1 is next."""
    place = max(1, place)
    return say(language, "waiting.place", place=place, ordinal=ordinal(place))


def ordinal(n: int) -> str:
    """1st, 2nd, 3rd, 4th, 11th …"""
    suffix = "th" if n % 100 in {11, 12, 13} else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{suffix}"
