"""The few DingTalk calls this adapter makes, one small function each (dingtalk.md §4, §5). No JSON leaves this module."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bot.domain.types import ChatKind, ReplyTarget
from bot.errors import Ambiguous, FallBack, RetryLater, TargetGone
from bot.platforms.dingtalk.client import Call, DingTalkClient, chat_limits
from bot.platforms.dingtalk.errors import CardExists, SlowDown

# A snapshot that would wait longer is better replaced by a newer one.
_GROWTH_WAIT_S = 0.5
_FINAL_WAIT_S = 10.0


def dumps(value: Any) -> str:
    """Compact JSON for the strings that hold JSON; non-ASCII is kept, so that sizes are those of the text."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Address:
    """Where an answer goes. `user_id` is the organisation's id of the asker, "" for people from outside."""

    chat_id: str
    is_group: bool
    user_id: str
    nick: str
    robot_code: str

    @classmethod
    def of(cls, target: ReplyTarget, robot_code: str) -> Address:
        """As written by `parse`."""
        opaque = target.opaque
        return cls(
            target.chat_id,
            opaque.get("kind") == ChatKind.GROUP.value,
            opaque.get("user", ""),
            opaque.get("nick", ""),
            robot_code or opaque.get("robot", "") or target.app_id,
        )


@dataclass(frozen=True, slots=True)
class NewCard:
    """A card to make. `params` are its template's variables: strings only."""

    template_id: str
    out_track_id: str
    params: Mapping[str, str]
    callback: Mapping[str, str]
    summary: str = ""
    at_user: bool = False


@dataclass(frozen=True, slots=True)
class Message:
    """A message that can never be changed: Markdown with a title for the list of chats, or plain text."""

    title: str
    text: str
    plain: bool = False


class DingTalkApi:
    """Typed calls on top of a client. Holds no state."""

    def __init__(self, client: DingTalkClient) -> None:
        self.client = client

    # -- messages ----------------------------------------------------------------------------------------------------
    async def post_session(
        self, webhook: str, address: Address, message: Message, at_user: bool
    ) -> None:
        """Answer through the question's sessionWebhook; no message id comes back."""
        body: dict[str, Any] = (
            {"msgtype": "text", "text": {"content": message.text}}
            if message.plain
            else {"msgtype": "markdown", "markdown": {"title": message.title, "text": message.text}}
        )
        if at_user and address.user_id:
            body["at"] = {"atUserIds": [address.user_id], "isAtAll": False}
        await self.client.post_session(webhook, body, address.chat_id)

    async def send(self, address: Address, message: Message) -> str:
        """Write to the chat as the robot; returns the processQueryKey."""
        content = (
            {"content": message.text}
            if message.plain
            else {"title": message.title, "text": message.text}
        )
        body: dict[str, Any] = {
            "robotCode": address.robot_code,
            "msgKey": "sampleText" if message.plain else "sampleMarkdown",
            "msgParam": dumps(content),
        }
        if address.is_group:
            call = Call("group_send", "POST", "/v1.0/robot/groupMessages/send",
                        {**body, "openConversationId": address.chat_id}, chat_limits(address.chat_id))  # fmt: skip
        elif address.user_id:
            call = Call("person_send", "POST", "/v1.0/robot/oToMessages/batchSend",
                        {**body, "userIds": [address.user_id]}, chat_limits(address.chat_id))  # fmt: skip
        else:
            raise TargetGone("the person is from outside and the session has ended")
        answer = await self.client.call(call)
        _check_receivers(call.api, answer, address.user_id)
        key = answer.get("processQueryKey")
        if not isinstance(key, str) or not key:
            raise Ambiguous(f"{call.api}: DingTalk does not say whether it was sent")
        return key

    # -- cards -------------------------------------------------------------------------------------------------------
    async def create_card(self, address: Address, card: NewCard) -> str:
        """Make a card and show it; returns the id of its message. HTTP 200 may still hold a refusal per receiver."""
        body: dict[str, Any] = {
            "cardTemplateId": card.template_id,
            "outTrackId": card.out_track_id,
            "cardData": {"cardParamMap": dict(card.params)},
            **card.callback,
            **_space(address, card),
        }
        call = Call("card_create", "POST", "/v1.0/card/instances/createAndDeliver", body)
        answer = await self.client.call(call)
        result = answer.get("result")
        delivered = result.get("deliverResults") if isinstance(result, Mapping) else None
        if answer.get("success") is False:
            raise FallBack("card_create: DingTalk says that it did not succeed")
        if not isinstance(delivered, list):
            raise Ambiguous("card_create: DingTalk does not say whether the card was delivered")
        if not delivered:  # a name that was used before "has no effect" (§5.1)
            raise CardExists("card_create: nothing was delivered by this call")
        for entry in delivered:
            if not isinstance(entry, Mapping) or entry.get("success") is not True:
                why = str(entry.get("errorMsg", "") if isinstance(entry, Mapping) else "")[:80]
                raise FallBack(f"card_create: the card was not delivered ({why or 'no reason'})")
        carrier = delivered[0].get("carrierId")
        return carrier if isinstance(carrier, str) else ""

    async def stream_card(
        self, out_track_id: str, key: str, content: str, *, last_guid: str = ""
    ) -> None:
        """Show the whole text so far; with `last_guid` for the last time. Every write has a guid of its own (§5.2)."""
        last = bool(last_guid)
        body = {
            "outTrackId": out_track_id,
            "guid": last_guid or str(uuid.uuid4()),
            "key": key,
            "content": content,
            "isFull": True,
            "isFinalize": last,
            "isError": False,
        }
        wait_s = _FINAL_WAIT_S if last else _GROWTH_WAIT_S
        call = Call("card_stream", "PUT", "/v1.0/card/streaming", body, max_wait_s=wait_s)
        _check_success(call.api, await self.client.call(call))

    async def put_card(self, out_track_id: str, params: Mapping[str, str]) -> None:
        """Set variables of a card; the others keep their values (§5.3)."""
        body = {
            "outTrackId": out_track_id,
            "cardData": {"cardParamMap": dict(params)},
            "cardUpdateOptions": {"updateCardDataByKey": True},
        }
        call = Call("card_update", "PUT", "/v1.0/card/instances", body)
        _check_success(call.api, await self.client.call(call))

    async def register_callback(self, route_key: str, url: str, secret: str) -> None:
        """Have the clicks on our cards sent to a URL (§5.8)."""
        body = {
            "callbackRouteKey": route_key,
            "callbackUrl": url,
            "apiSecret": secret,
            "forceUpdate": True,
        }
        await self.client.call(Call("card_callback", "POST", "/v1.0/card/callbacks/register", body))

    async def file_url(self, download_code: str, robot_code: str) -> str:
        """A short-lived address of something a person sent (§1.2)."""
        body = {"downloadCode": download_code, "robotCode": robot_code}
        call = Call("file_url", "POST", "/v1.0/robot/messageFiles/download", body)
        url = (await self.client.call(call)).get("downloadUrl")
        if not isinstance(url, str) or not url:
            raise RetryLater("file_url: DingTalk's answer holds no address")
        return url


def _space(address: Address, card: NewCard) -> dict[str, Any]:
    """Where a card appears, and how it is told of there."""
    space_model: dict[str, Any] = {"supportForward": True}
    if card.summary:
        space_model["lastMessageI18n"] = {"ZH_CN": card.summary, "EN_US": card.summary}
        space_model["notification"] = {"alertContent": card.summary, "notificationOff": False}
    # The preview in the list of chats follows the text, where the client does so.
    deliver: dict[str, Any] = {"robotCode": address.robot_code, "extension": {"dynamicSummary": "true"}}  # fmt: skip
    if address.is_group:
        if card.at_user and address.user_id:
            deliver["atUserIds"] = {address.user_id: address.nick or address.user_id}
        return {
            "openSpaceId": f"dtv1.card//IM_GROUP.{address.chat_id}",
            "imGroupOpenSpaceModel": space_model,
            "imGroupOpenDeliverModel": deliver,
        }
    if not address.user_id:
        raise FallBack("card_create: a person from outside cannot be sent a card")
    return {
        "openSpaceId": f"dtv1.card//IM_ROBOT.{address.user_id}",
        "imRobotOpenSpaceModel": space_model,
        "imRobotOpenDeliverModel": {"spaceType": "IM_ROBOT", **deliver},
    }


def _check_success(api: str, answer: Mapping[str, Any]) -> None:
    said = (answer.get("success"), answer.get("result"))
    if True not in said or False in said:
        raise Ambiguous(f"{api}: DingTalk does not say that it succeeded")


def _check_receivers(api: str, answer: Mapping[str, Any], user_id: str) -> None:
    """HTTP 200 with the person in one of these lists means: not delivered (§4.3)."""

    def listed(key: str) -> bool:
        found = answer.get(key)
        return isinstance(found, list) and user_id in found

    if not user_id:
        return
    if listed("flowControlledStaffIdList"):
        raise SlowDown(f"{api}: too many messages to this person", after_s=5.0)
    if listed("invalidStaffIdList") or listed("filteredStaffIdList"):
        raise TargetGone(f"{api}: the person cannot be written to")
