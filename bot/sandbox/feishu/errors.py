"""The refusals of the platform: one table of codes and words, one exception. Codes from feishu.md §3–§5 and the docs it cites."""

from __future__ import annotations

from collections.abc import Mapping

_WORDS: Mapping[int, str] = {
    10002: "The request has an invalid parameter.",
    10003: "invalid param",
    10014: "app secret invalid",
    10015: "app secret mismatch",
    99991400: "request trigger frequency limit",
    99991401: "The caller's address is not on the app's IP whitelist.",
    99991403: "the tenant's monthly call quota is used up",
    99991661: "Missing access token for authorization. Please make sure to obtain and pass one.",
    99991663: "Invalid access token for authorization. Please obtain a new token.",
    99991671: "Invalid access token for authorization: it must start with t- or u-.",
    99991672: "Access denied. One of the required scopes is missing.",
    11310: "element or table number over limit, or the card id is invalid",
    200220: "Failed to generate card content",
    200380: "template does not exist",
    200510: "Card streaming timeout",
    200570: "invalid image key",
    200621: "parse card json err, please check whether the card json is correct",
    200740: "The card entity does not exist",
    200750: "The card entity has expired",
    200770: "UUID conflict",
    200810: "The card is in an ongoing interaction and cannot be updated",
    200830: "a card of schema 2.0 cannot become one of schema 1.0",
    200850: "Card streaming timeout",
    200860: "Card content exceeds limit.",
    200861: "cards of schema V2 do not support this tag",
    230001: "Your request contains an invalid request parameter.",
    230002: "The bot can not be outside the group.",
    230006: "Bot ability is not activated.",
    230009: "Message has expired when recall message.",
    230011: "The message is recalled.",
    230013: "Bot has NO availability to this user.",
    230018: "These operations are NOT allowed at current group settings.",
    230019: "The topic does NOT exist.",
    230020: "This operation triggers the frequency limit.",
    230025: "The length of the message content reaches its limit.",
    230026: "No permission to recall this message.",
    230031: "The message has passed the time in which it can be updated.",
    230034: "The receive_id is invalid.",
    230035: "Send Message Permission deny.",
    230053: "The user has stopped the bot from sending messages.",
    230054: "This operation is not supported for this message type.",
    230071: "The operator is not the sender of the message.",
    230072: "The message has reached the number of times it can be edited.",
    230099: "Failed to create card content",
    230110: "Action unavailable as the message has been deleted.",
    231001: "reaction type is invalid.",
    231002: "The operator has no permission to react on the specific message.",
    231003: "The message is not found, maybe not exist or deleted.",
    231007: "The operator has no permission to delete this reaction.",
    231010: "The reaction does not belong to the message.",
    231011: "The request has an invalid reaction_id.",
    232006: "Your request specifies an invalid chat_id.",
    232009: "Your request specifies a chat which has already been dissolved.",
    232011: "Operator can NOT be out of the chat.",
    234001: "Invalid request param.",
    234003: "File not in msg.",
    234004: "App not in chat.",
    234037: "Downloaded file size exceeds limit.",
    300120: "Server Internal Error",
    300121: "Failed to replace element",
    300122: "Failed to update card configuration",
    300301: "Duplicate element_id in card component.",
    300302: "update_multi property is false",
    300303: "Only schema 2.0 is supported",
    300305: "The number of card components exceeds 200",
    300307: "The card DSL is empty",
    300309: "Card streaming closed",
    300310: "Only update text",
    300311: "The current application does not have permission to update/use this card",
    300312: "Unable to update element tag",
    300313: "Failed to update element properties",
    300314: "Failed to delete element",
    300315: "Failed to add element",
    300317: "The sequence number for operating on the card did not increment consecutively",
}


class ApiError(Exception):
    """A refusal: business code, words, HTTP status (400 unless said otherwise) and extra headers."""

    def __init__(
        self,
        code: int,
        detail: str = "",
        *,
        status: int = 400,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        words = _WORDS.get(code, "error")
        super().__init__(f"{words} {detail}".strip())
        self.code = code
        self.detail = detail
        self.status = status
        self.headers = dict(headers or {})

    @property
    def msg(self) -> str:
        """What stands in the reply's `msg`."""
        return str(self)


class CardError(ApiError):
    """A card that is refused. CardKit gives the code itself; im/v1/messages wraps it into 230099."""

    def wrapped(self) -> ApiError:
        """The same refusal as the message API gives it (feishu.md §4.6)."""
        if self.code == 230099:
            return self
        if self.code == 200860:
            return ApiError(230025, self.detail)
        words = _WORDS.get(self.code, "error")
        return ApiError(
            230099, f", ext=ErrCode: {self.code}; ErrMsg: {words}; ErrorValue: {self.detail}"
        )


def card_create_error(sub_code: int, words: str) -> CardError:
    """230099 with its real cause inside the message (feishu.md §4.6)."""
    return CardError(230099, f", ext=ErrCode: {sub_code}; ErrMsg: {words}")


def rate_limited(reset_s: float) -> ApiError:
    """HTTP 429, 99991400, and the header that says when to come back (feishu.md §4.5)."""
    seconds = max(1, int(reset_s) + (reset_s % 1 > 0))
    return ApiError(99991400, status=429, headers={"x-ogw-ratelimit-reset": str(seconds)})
