"""The refusals of WeCom: one table of codes and words, one exception. Codes from wecom.md §3.6 and §4.

Where the document names no code for a case, the nearest one of the public global table stands in (marked "assumed").
"""

from __future__ import annotations

from collections.abc import Mapping

BUSY = -1
BAD_SECRET = 40001
BAD_MEDIA_TYPE = 40004
BAD_MEDIA_ID = 40007
BAD_MSGTYPE = 40008
BAD_CORP = 40013
BAD_TOKEN = 40014
BAD_AGENT = 40056
BAD_PARAMETER = 40058
NO_TOKEN = 41001
EXPIRED_TOKEN = 42001
EMPTY_CONTENT = 44004
TOO_LONG = 45002
TOO_OFTEN = 45009
TOO_MANY_AT_ONCE = 45033
NOT_JSON = 47001
BAD_IP = 60020
OTHER_AGENT = 301002  # assumed: the public global table's code for an agent of another secret
NOBODY = 81013
BAD_RESPONSE_CODE = 93000
BAD_CHAT = 93006
NOT_IN_CHAT = 93008
CONFLICT = 6000
WINDOW_OVER = 846604
BAD_REQ_ID = 846605
STREAM_OVER = 846608
NOT_SUBSCRIBED = 846609
BAD_BOT = 853000

_WORDS: Mapping[int, str] = {
    BUSY: "system busy",
    BAD_SECRET: "invalid credential",
    BAD_MEDIA_TYPE: "invalid media type",
    BAD_MEDIA_ID: "invalid media_id",
    BAD_MSGTYPE: "invalid message type",
    BAD_CORP: "invalid corpid",
    BAD_TOKEN: "invalid access_token",
    BAD_AGENT: "invalid agentid",
    BAD_PARAMETER: "invalid Request Parameter",
    NO_TOKEN: "access_token missing",
    EXPIRED_TOKEN: "access_token expired",
    EMPTY_CONTENT: "empty content",
    TOO_LONG: "content size out of limit",
    TOO_OFTEN: "api freq out of limit",
    TOO_MANY_AT_ONCE: "too many concurrent calls",
    NOT_JSON: "data format error",
    BAD_IP: "not allow to access from your ip",
    OTHER_AGENT: "not allow operate another agent with this accesstoken",
    NOBODY: "user & party & tag all invalid",
    BAD_RESPONSE_CODE: "invalid response_code",
    BAD_CHAT: "invalid chatid",
    NOT_IN_CHAT: "the bot is not in the chat",
    CONFLICT: "version conflict",
    WINDOW_OVER: "the time for a reply is over",
    BAD_REQ_ID: "invalid req_id",
    STREAM_OVER: "stream message update expired",
    NOT_SUBSCRIBED: "the connection is not subscribed",
    BAD_BOT: "invalid bot_id or secret",
}


class ApiError(Exception):
    """A refusal: errcode and errmsg. The HTTP status is 200 unless said otherwise."""

    def __init__(self, code: int, detail: str = "", *, status: int = 200) -> None:
        super().__init__(f"{_WORDS.get(code, 'error')} {detail}".strip())
        self.code = code
        self.status = status

    @property
    def msg(self) -> str:
        """What stands in `errmsg`."""
        return str(self)
