"""A bot made of DingTalk's own client, as a program: it prints every message it gets as a JSON line, and does what it is told.

Run with DINGTALK_OPENAPI_ENDPOINT (the client reads it at import) and the credentials as arguments. In a process of its own
because the client blocks its event loop and cannot be stopped (dingtalk.md §2.4).
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys

import dingtalk_stream
from dingtalk_stream import AckMessage, CallbackMessage, ChatbotMessage
from dingtalk_stream.card_replier import AICardReplier

OWN_TEMPLATE = "00000000-5a4d-4b0e-9d00-000000000001.schema"
SILENT = logging.getLogger("silent")


def tell(kind: str, **what: object) -> None:
    sys.stdout.write(json.dumps({"kind": kind, **what}) + "\n")
    sys.stdout.flush()


class Robot(dingtalk_stream.ChatbotHandler):
    async def process(self, callback: CallbackMessage) -> tuple[int, str]:
        message = ChatbotMessage.from_dict(callback.data)
        words = (message.get_text_list() or [""])[0].strip()
        tell(
            "message",
            id=message.message_id,
            text=words,
            nick=message.sender_nick,
            staff=message.sender_staff_id,
        )
        if words == "fail":
            raise RuntimeError("told to fail")
        if words == "answer":
            self.reply_markdown("title", "an **answer**", message)
        elif words == "grow":
            card = self.ai_markdown_card_start(message)
            card.ai_streaming("one", append=True)
            card.ai_streaming(" two", append=True)
            buttons = [{"text": "Again", "id": "again", "request": True}]
            card.ai_finish(markdown="one two", button_list=buttons)
        elif words == "own card":
            replier = AICardReplier(self.dingtalk_client, message)
            card_id = replier.create_and_deliver_card(OWN_TEMPLATE, {"content": ""}, at_sender=True)
            for text, last in (("one", False), ("one two", True)):
                replier.streaming(
                    card_id, "content", text, append=False, finished=last, failed=False
                )
            replier.put_card_data(card_id, {"content": "one two"})
        return AckMessage.STATUS_OK, "OK"


class Clicks(dingtalk_stream.CallbackHandler):
    async def process(self, callback: CallbackMessage) -> tuple[int, object]:
        click = dingtalk_stream.CardCallbackMessage.from_dict(callback.data)
        tell("click", user=click.user_id, content=click.content, card=click.card_instance_id)
        params = {"msgContent": "clicked"}
        return AckMessage.STATUS_OK, {
            "cardData": {"cardParamMap": params},
            "cardUpdateOptions": {"updateCardDataByKey": True},
        }


class Events(dingtalk_stream.EventHandler):
    async def process(self, event: dingtalk_stream.EventMessage) -> tuple[int, str]:
        tell("event", type=event.headers.event_type, id=event.headers.event_id, data=event.data)
        return AckMessage.STATUS_OK, "OK"


def main() -> None:
    client_id, secret = sys.argv[1:]
    client = dingtalk_stream.DingTalkStreamClient(
        dingtalk_stream.Credential(client_id, secret), logger=SILENT
    )
    client.register_all_event_handler(Events())
    client.register_callback_handler(ChatbotMessage.TOPIC, Robot())
    client.register_callback_handler(dingtalk_stream.CallbackHandler.TOPIC_CARD_CALLBACK, Clicks())
    asyncio.run(client.start())


if __name__ == "__main__":
    main()
