"""The set-up steps in English; menus by the names of the consoles' English edition, or in Chinese where there is none. Step for
step as in guides_zh."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_FEISHU_SCOPES = (
    "Permissions & Scopes → add: im:message.p2p_msg:readonly, im:message.group_at_msg:readonly, im:message:send_as_bot, "
    "im:message:update, im:message.reactions:write_only, im:message:readonly, im:chat.members:bot_access, cardkit:card:write"
)
_FEISHU_ALL = '?all add im:message.group_msg too (sensitive, an admin must approve): the config has answer_in_groups = "all" or chat.listen'
_FEISHU_PUBLISH = (
    "Version Management & Release → create a version, choose who may use it, publish it and have it approved; nothing of the "
    "above works before that"
)
_ADMIN = (
    "add the bot to a group, @ it, send /whoami, and put the line it answers into access.admins"
)
_DING_START = (
    "open {console} and there the app of your own organisation (Client ID {app_id}); Credentials and Basic Information (凭证与基础信息) "
    "shows Client ID and Client Secret: client_id, client_secret"
)
_DING_SCOPES = (
    "Permission Management (权限管理) → apply for qyapi_robot_sendmsg (企业内机器人发送消息权限)"
)
_DING_CARD_SCOPES = "?cards Permission Management (权限管理) → apply for Card.Instance.Write and Card.Streaming.Write, for growing answers"
_DING_CARD = (
    "?cards card platform https://open-dev.dingtalk.com/fe/card: see that {template} is published and linked to this app, and that "
    "streaming is on for its Markdown variable {key}"
)
_DING_PUBLISH = "Version Management and Release (版本管理与发布) → create a version → publish; nothing of the above works before that"
_WECOM_CREATE = "open {console}: 安全与管理 → 管理工具 → 智能机器人 → 创建机器人 → 手动创建, and choose API 模式创建 (API mode)"

STEPS: Final[dict[tuple[str, str], tuple[str, Sequence[str]]]] = {
    ("feishu", "websocket"): (
        "Feishu, long connection (no public address needed): bot {bot}",
        (
            "open {console} and there the self-built app {app_id}; Credentials & Basic Info shows App ID and App Secret: app_id, app_secret",
            "Add Features → Bot",
            _FEISHU_SCOPES,
            _FEISHU_ALL,
            "start hearth serve first: the console saves a long connection only while one is open",
            ("Events & Callbacks → Event Configuration → Subscription mode: receive events through persistent connection; add the events "
            "im.message.receive_v1, im.message.recalled_v1, im.chat.member.bot.added_v1"),
            "Events & Callbacks → Callback Configuration → Subscription mode: receive callbacks through persistent connection; add card.action.trigger",
            _FEISHU_PUBLISH,
            _ADMIN,
        ),
    ),
    ("feishu", "webhook"): (
        "Feishu, events sent to this server: bot {bot}",
        (
            "open {console} and there the self-built app {app_id}; Credentials & Basic Info shows App ID and App Secret: app_id, app_secret",
            "Add Features → Bot",
            _FEISHU_SCOPES,
            _FEISHU_ALL,
            "Events & Callbacks → Encryption Strategy: set an Encrypt Key, put it and the Verification Token into the config; then start hearth serve",
            ("Events & Callbacks → Event Configuration → Subscription mode: send to developer's server, Request URL {url}; add the events "
            "im.message.receive_v1, im.message.recalled_v1, im.chat.member.bot.added_v1"),
            "Events & Callbacks → Callback Configuration → Subscription mode: send to developer's server, Request URL {url} as well; add card.action.trigger",
            _FEISHU_PUBLISH,
            _ADMIN,
        ),
    ),
    ("dingtalk", "stream"): (
        "DingTalk, Stream mode (no public address needed): bot {bot}",
        (
            _DING_START,
            "Add Abilities (添加应用能力) → Robot (机器人), message receiving mode (消息接收模式): Stream",
            _DING_SCOPES,
            _DING_CARD_SCOPES,
            _DING_CARD,
            _DING_PUBLISH,
            "start hearth serve; run one deployment per Client ID, or they take each other's messages at random",
            _ADMIN,
        ),
    ),
    ("dingtalk", "webhook"): (
        "DingTalk, HTTP mode: bot {bot}",
        (
            _DING_START,
            "start hearth serve; then Add Abilities (添加应用能力) → Robot (机器人), message receiving mode (消息接收模式): HTTP, address {url}",
            _DING_SCOPES,
            _DING_CARD_SCOPES,
            _DING_CARD,
            '?cards put card_callback_url = "{card_url}" into the config, so that clicks arrive; Hearth registers it, the console has no field for it',
            _DING_PUBLISH,
            _ADMIN,
        ),
    ),
    ("wecom_bot", "websocket"): (
        "WeCom AI bot, long connection (no public address needed): bot {bot}",
        (
            _WECOM_CREATE,
            "connection: 使用长连接 (long connection); put Bot ID (configured now: {bot_id}) and Secret into bot_id, secret",
            "可见范围 (visible range): choose who may use it, and save",
            "start hearth serve; a bot has one connection, and a later one throws out an earlier one",
            "add the bot to a group chat, @ it, send /whoami, and put the line it answers into access.admins",
        ),
    ),
    ("wecom_bot", "webhook"): (
        "WeCom AI bot, URL callback: bot {bot}",
        (
            _WECOM_CREATE,
            "connection: 使用 URL 回调 (URL callback); put Token and EncodingAESKey into token, encoding_aes_key; do not save yet",
            "start hearth serve, enter the URL {url}, then save: WeCom checks it at once and waits 1 s for the answer",
            "可见范围 (visible range): choose who may use it, and save",
            "add the bot to a group chat, @ it, send /whoami, and put the line it answers into access.admins",
        ),
    ),
    ("wecom_app", "webhook"): (
        "WeCom self-built app (one-to-one chats only): bot {bot}",
        (
            "open {console}: 应用管理 → 自建 → 创建应用; put AgentId (configured now: {agent_id}) and Secret into agent_id, corp_secret",
            "我的企业 → 企业信息: 企业ID is corp_id (configured now: {corp_id})",
            "the app's page → 接收消息 → 设置API接收: put Token and EncodingAESKey into the config; do not save yet",
            "start hearth serve, enter the URL {url}, then save: WeCom checks it at once and waits 1 s for the answer",
            "the app's page → 企业可信IP (trusted IPs): add this machine's outgoing address, or sending fails with 60020 (the log and hearth doctor name the address that WeCom saw)",
            "the app's page → 可见范围 (visible range): choose who may use it",
            "send /whoami in the app, and put the line it answers into access.admins",
        ),
    ),
}  # fmt: skip
