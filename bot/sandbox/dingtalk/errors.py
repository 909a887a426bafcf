"""The refusals of the platform in its two dialects: words (api.dingtalk.com) and numbers (oapi.dingtalk.com). dingtalk.md §3, §4, §5."""

from __future__ import annotations

from collections.abc import Mapping

_WORDS: Mapping[str, str] = {
    "invalidClientIdOrSecret": "无效的clientId或者clientSecret",
    "invalidParameter": "参数错误",
    "InvalidAuthentication": "不合法的access_token",
    "Forbidden.AccessDenied.AccessTokenPermissionDenied": "应用尚未开通所需的权限",
    "Forbidden.AccessDenied.IpNotInWhiteList": "访问ip不在白名单之中",
    "Forbidden.AccessDenied.QpsLimitForAppkeyAndApi": "您的服务器调用钉钉开放平台的接口过于频繁",
    "Forbidden.AccessDenied.QpmLimitForAppkeyAndApi": "您的服务器调用钉钉开放平台的接口过于频繁",
    "Forbidden.AccessDenied.ApiCountLimitForOrg": "组织本月的接口调用次数已用完",
    "Forbidden.AccessDenied.CardConcurrency": "同一张卡片正在更新",
    "unknownError": "未知错误",
    "system.busy": "系统繁忙",
    "param.templateNotExist": "卡片模板不存在",
    "param.templateUnpublished": "卡片模板未发布",
    "param.outTrackId": "outTrackId不合法",
    "param.openSpaceId": "openSpaceId不合法",
    "param.cardParamMap": "cardParamMap不合法",
    "param.callbackType": "callbackType不合法",
    "param.robotCode": "robotCode不能为空",
    "param.supportForward": "supportForward不能为空",
    "param.callbackRouteKey": "callbackRouteKey不合法",
    "cardAlreadyExist": "卡片已存在",
    "cardNotExist": "卡片不存在",
    "contentUnsafe": "内容不合规",
    "param.stream.outTrackId": "卡片不存在",
    "param.stream.keyEmpty": "key不能为空",
    "param.stream.contentEmpty": "content不能为空",
    "param.stream.guidEmpty": "guid不能为空",
    "param.stream.isFull": "isFull不合法",
    "param.stream.content": "content is too large",
    "param.stream.finalized": "卡片已结束流式更新",
    "invalidParameter.msgParam.tooLong": "msgParam过长",
    "invalidParameter.msgKey": "msgKey不合法",
    "invalidParameter.robotCode": "robotCode与应用不匹配",
    "too.many.people": "人数超过限制",
    "bot.stopped": "机器人已停用",
    "staffId.notExisted": "员工不存在",
    "send.too.fast": "发送过快",
    "invalidParameter.downloadCode": "downloadCode不合法",
    "resource.notFound": "no such api",
}
_STATUS: Mapping[str, int] = {
    "unknownError": 500,
    "system.busy": 503,
    "resource.notFound": 404,
}
_NUMBERS: Mapping[int, str] = {
    -1: "系统繁忙",
    88: "不合法的access_token",
    40014: "不合法的access_token",
    40035: "不合法的参数",
    40089: "不合法的corpid或corpsecret",
    43004: "无效的HTTP HEADER Content-Type",
    90018: "您的服务器调用钉钉开放平台的接口过于频繁",
    90020: "组织本月的消息次数已用完",
    130101: "send too fast, exceed 20 times per minute",
    300001: "session 不存在",
    400013: "群已被解散",
    400102: "机器人已停用",
    400105: "不支持的消息类型",
    430102: "含有不合适的文本",
    460101: "message too long, exceed 20000 bytes",
}


class ApiError(Exception):
    """A refusal in words: `{code, message, requestid}` with an HTTP status, and the scopes that are missing."""

    def __init__(
        self, code: str, message: str = "", *, status: int = 0, scopes: tuple[str, ...] = ()
    ) -> None:
        words = _WORDS.get(code, "error")
        super().__init__(f"{words}: {message}" if message else words)
        self.code = code
        self.status = status or _STATUS.get(
            code, 403 if code.startswith("Forbidden.AccessDenied") else 400
        )
        self.scopes = scopes

    @property
    def is_rate(self) -> bool:
        """Refused for its rate: not billed."""
        return "Limit" in self.code and self.code != "Forbidden.AccessDenied.ApiCountLimitForOrg"


class OldError(Exception):
    """A refusal in numbers: `{errcode, errmsg}` with HTTP 200."""

    def __init__(self, code: int, message: str = "") -> None:
        super().__init__(message or _NUMBERS.get(code, "error"))
        self.code = code


def qps_limited() -> ApiError:
    """403: more than 20 calls of one API in a second (§3)."""
    return ApiError("Forbidden.AccessDenied.QpsLimitForAppkeyAndApi")
