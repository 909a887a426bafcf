"""设置步骤（中文）：菜单用后台里的原名。与 guides_en 逐条对应。"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_FEISHU_SCOPES = (
    "权限管理 → 开通权限：im:message.p2p_msg:readonly、im:message.group_at_msg:readonly、im:message:send_as_bot、"
    "im:message:update、im:message.reactions:write_only、im:message:readonly、im:chat.members:bot_access、cardkit:card:write"
)
_FEISHU_ALL = '?all 再开通 im:message.group_msg（敏感权限，需管理员审核）：配置里写了 answer_in_groups = "all" 或 chat.listen'
_FEISHU_PUBLISH = "版本管理与发布 → 创建版本，“可用范围”选上要用的人，申请发布并等管理员通过；此前一切设置都不生效"
_ADMIN = "把机器人拉进群，@它 发送 /whoami，把它回复的那一行写进 access.admins"
_DING_START = "打开 {console}，进入企业内部应用（Client ID：{app_id}）；“凭证与基础信息”里的 Client ID、Client Secret 就是 client_id、client_secret"
_DING_SCOPES = "权限管理：申请“企业内机器人发送消息权限”（qyapi_robot_sendmsg）"
_DING_CARD_SCOPES = (
    "?cards 权限管理：再申请 Card.Instance.Write 和 Card.Streaming.Write，供卡片流式更新"
)
_DING_CARD = "?cards 卡片平台 https://open-dev.dingtalk.com/fe/card：确认模板 {template} 已发布并关联本应用，Markdown 变量 {key} 已打开流式"
_DING_PUBLISH = "版本管理与发布 → 创建新版本 → 发布；此前一切设置都不生效"
_WECOM_CREATE = (
    "打开 {console}：安全与管理 → 管理工具 → 智能机器人 → 创建机器人 → 手动创建，选“API 模式创建”"
)

STEPS: Final[dict[tuple[str, str], tuple[str, Sequence[str]]]] = {
    ("feishu", "websocket"): (
        "飞书 · 长连接（不需要公网地址）：机器人 {bot}",
        (
            "打开 {console}，进入企业自建应用 {app_id}；“凭证与基础信息”里的 App ID、App Secret 就是 app_id、app_secret",
            "添加应用能力 → 机器人",
            _FEISHU_SCOPES,
            _FEISHU_ALL,
            "先运行 hearth serve：后台只有在已连上时才能保存长连接",
            ("事件与回调 → 事件配置 → 订阅方式：使用长连接接收事件；添加事件：接收消息 im.message.receive_v1、"
            "撤回消息 im.message.recalled_v1、机器人进群 im.chat.member.bot.added_v1"),
            "事件与回调 → 回调配置 → 订阅方式：使用长连接接收回调；添加回调：卡片回传交互 card.action.trigger",
            _FEISHU_PUBLISH,
            _ADMIN,
        ),
    ),
    ("feishu", "webhook"): (
        "飞书 · 将事件发送至开发者服务器：机器人 {bot}",
        (
            "打开 {console}，进入企业自建应用 {app_id}；“凭证与基础信息”里的 App ID、App Secret 就是 app_id、app_secret",
            "添加应用能力 → 机器人",
            _FEISHU_SCOPES,
            _FEISHU_ALL,
            "事件与回调 → 加密策略：设置 Encrypt Key，连同 Verification Token 写进配置；然后运行 hearth serve",
            ("事件与回调 → 事件配置 → 订阅方式：将事件发送至开发者服务器，请求地址填 {url}；添加事件：接收消息 "
            "im.message.receive_v1、撤回消息 im.message.recalled_v1、机器人进群 im.chat.member.bot.added_v1"),
            "事件与回调 → 回调配置 → 订阅方式：将回调发送至开发者服务器，请求地址同样填 {url}；添加回调：卡片回传交互 card.action.trigger",
            _FEISHU_PUBLISH,
            _ADMIN,
        ),
    ),
    ("dingtalk", "stream"): (
        "钉钉 · Stream 模式（不需要公网地址）：机器人 {bot}",
        (
            _DING_START,
            "添加应用能力 → 机器人，打开机器人配置，消息接收模式选“Stream 模式”",
            _DING_SCOPES,
            _DING_CARD_SCOPES,
            _DING_CARD,
            _DING_PUBLISH,
            "运行 hearth serve；同一个 Client ID 只运行一套，否则消息会被随机分走",
            _ADMIN,
        ),
    ),
    ("dingtalk", "webhook"): (
        "钉钉 · HTTP 模式：机器人 {bot}",
        (
            _DING_START,
            "先运行 hearth serve；然后添加应用能力 → 机器人，打开机器人配置，消息接收模式选“HTTP 模式”，消息接收地址填 {url}",
            _DING_SCOPES,
            _DING_CARD_SCOPES,
            _DING_CARD,
            "?cards 配置里写 card_callback_url = \"{card_url}\"，按钮的点击才会送到；Hearth 自己去登记，后台不用填",
            _DING_PUBLISH,
            _ADMIN,
        ),
    ),
    ("wecom_bot", "websocket"): (
        "企业微信智能机器人 · 长连接（不需要公网地址）：机器人 {bot}",
        (
            _WECOM_CREATE,
            "连接方式选“使用长连接”，把 Bot ID（现在配置的是 {bot_id}）和 Secret 写进 bot_id、secret",
            "“可见范围”选上要用的人，保存",
            "运行 hearth serve；同一个机器人只能有一个连接，后连上的会把先连上的踢掉",
            "在会话里把机器人添加进群，@它 发送 /whoami，把它回复的那一行写进 access.admins",
        ),
    ),
    ("wecom_bot", "webhook"): (
        "企业微信智能机器人 · URL 回调：机器人 {bot}",
        (
            _WECOM_CREATE,
            "连接方式选“使用 URL 回调”，把 Token 和 EncodingAESKey 写进 token、encoding_aes_key，先不要保存",
            "运行 hearth serve，URL 填 {url}，再保存：企业微信会立即校验，1 秒内须得到回应",
            "“可见范围”选上要用的人，保存",
            "在会话里把机器人添加进群，@它 发送 /whoami，把它回复的那一行写进 access.admins",
        ),
    ),
    ("wecom_app", "webhook"): (
        "企业微信自建应用（只有单聊）：机器人 {bot}",
        (
            "打开 {console}：应用管理 → 自建 → 创建应用；AgentId（现在配置的是 {agent_id}）和 Secret 写进 agent_id、corp_secret",
            "我的企业 → 企业信息：企业ID 就是 corp_id（现在配置的是 {corp_id}）",
            "应用页 → 接收消息 → 设置API接收：生成 Token 和 EncodingAESKey 写进配置，先不要保存",
            "运行 hearth serve，URL 填 {url}，再保存：企业微信会立即校验，1 秒内须得到回应",
            "应用页 → 企业可信IP → 配置：填本机的出口地址，否则发消息报 60020（日志和 hearth doctor 会写明企业微信看到的地址）",
            "应用页 → 可见范围：选上要用的人",
            "在应用里发送 /whoami，把它回复的那一行写进 access.admins",
        ),
    ),
}  # fmt: skip
