"""Messages that a question refers to: context for the model, never a command, looked up where only their id is told."""

from __future__ import annotations

import asyncio

from bot.domain.types import Attachment, ChatKind, Quoted, Sender

GROUP = {"chat_kind": ChatKind.GROUP, "mentions_bot": True, "chat_id": "group"}


async def _prompt(world, tools, said):
    """What the model was shown for a message's turn."""
    await world.settled(said)
    return tools.text_of(world.engine.requests[-1])


async def test_a_quote_stands_before_the_question_and_stays_in_later_prompts(world, tools):
    said = await world.say("is it true?", quoted=Quoted("q1", "the moon\nis cheese"))
    prompt = await _prompt(world, tools, said)
    assert "refers to this message)\n> the moon\n> is cheese\n\nis it true?" in prompt
    assert (await world.turn(said)).question == "is it true?"
    later = await _prompt(world, tools, await world.say("sure?"))
    assert "> is cheese\n\nis it true?" in later
    assert world.adapter.looked_up == []


async def test_a_quoted_command_is_not_obeyed_and_a_command_may_quote(world, tools):
    said = await world.say("what does this do?", quoted=Quoted("q1", "/reset"))
    assert "> /reset\n\nwhat does" in await _prompt(world, tools, said)
    command = await world.say("/whoami", quoted=Quoted("q1", "who is who"))
    assert "feishu:ann" in await world.answer(command)


async def test_a_quote_alone_is_a_question(world, tools):
    said = await world.say("", **GROUP, quoted=Quoted("q1", "a bug in line 7"))
    prompt = await _prompt(world, tools, said)
    assert "> a bug in line 7\n\nPlease respond to the message quoted above." in prompt


async def test_what_only_has_an_id_is_looked_up_on_the_platform(world, tools):
    world.adapter.quotes["om_q"] = Quoted("om_q", "the budget is 7")
    said = await world.say("agreed?", quoted=Quoted("om_q"))
    assert "> the budget is 7\n\nagreed?" in await _prompt(world, tools, said)
    unknown = await world.say("and this?", quoted=Quoted("om_gone"))
    assert "could not be read)\n\nand this?" in await _prompt(world, tools, unknown)
    assert world.adapter.looked_up == ["om_q", "om_gone"]
    alone = await world.say("", **GROUP, quoted=Quoted("om_gone"))
    assert "/help" in await world.answer(alone)


async def test_our_own_words_come_from_our_own_record(world, tools):
    """The recording platform calls every message of ours "m"."""
    asked = await world.say("first?")
    assert await world.answer(asked) == "Hello there"
    said = await world.say("why?", quoted=Quoted("m"))
    assert "> Hello there\n\nwhy?" in await _prompt(world, tools, said)
    again = await world.say("and?", quoted=Quoted(asked.message_id))
    assert "> first?\n\nand?" in await _prompt(world, tools, again)
    elsewhere = await world.say("what?", **GROUP, quoted=Quoted(asked.message_id))
    await world.settled(elsewhere)
    assert world.adapter.looked_up == [asked.message_id], (
        "what was said in another chat is not told"
    )


async def test_a_topics_first_message_is_shown_once(world, tools):
    topic = {**GROUP, "topic_id": "t1"}
    world.adapter.quotes["om_root"] = Quoted("om_root", "the plan: rest")
    root = Quoted("om_root", is_topic_root=True)
    first = await world.say("fine?", **topic, quoted=root)
    assert "> the plan: rest\n\nfine?" in await _prompt(world, tools, first)
    second = await world.say("sure?", **topic, quoted=root)
    assert (await _prompt(world, tools, second)).count("the plan: rest") == 1
    bob = await world.say("and me?", **topic, quoted=root, sender=Sender("bob", "Bob"))
    assert "> the plan: rest\n\nand me?" in await _prompt(world, tools, bob)


async def test_a_quoted_file_is_named_and_read(world, tools):
    world.adapter.files = {"k": b"the answer is 42"}
    file = Attachment("file", "notes.txt", "k", "om_q")
    said = await world.say("what is the answer?", quoted=Quoted("om_q", "", (file,)))
    prompt = await _prompt(world, tools, said)
    assert "> [file notes.txt]" in prompt
    assert "the answer is 42" in prompt
    assert world.adapter.fetched == [("k", "om_q")], "asked for by the message that brought it"
    picture = Quoted("om_p", "", (Attachment("image", "", "i", "om_p"),))
    seen = await world.say("and this?", quoted=picture)
    assert "> [image]\n\nand this?" in await _prompt(world, tools, seen)


async def test_a_file_behind_an_id_is_read_too(world, tools):
    world.adapter.files = {"k": b"the answer is 42"}
    file = Attachment("file", "notes.txt", "k", "om_q")
    world.adapter.quotes["om_q"] = Quoted("om_q", "", (file,))
    said = await world.say("what is the answer?", quoted=Quoted("om_q"))
    assert "the answer is 42" in await _prompt(world, tools, said)
    alone = await world.say("", **GROUP, quoted=Quoted("om_q"))
    assert "I have read" in await world.answer(alone)


async def test_merged_messages_keep_their_quotes(world, tools):
    hold = tools.Script(words=("one", " more"), hold=asyncio.Event())
    world.engine.scripts = [hold]
    running = await world.say("first")
    await tools.eventually(lambda: len(world.engine.requests) == 1)
    second = await world.say("this", quoted=Quoted("q1", "alpha"))
    await world.say("and that", quoted=Quoted("q2", "beta"))
    hold.hold.set()
    await world.settled(running)
    prompt = await _prompt(world, tools, second)
    assert "> alpha\n" in prompt
    assert "> beta\n\nthis\nand that" in prompt
