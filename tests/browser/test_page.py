"""The demo page in a real browser against the scripted stage: what people do, what must never happen, on both screens."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from mock_stage import MockStage
from playwright.async_api import Page, expect

# One loop for the file, so that one browser serves all of its tests.
pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]

OpenPage = Callable[..., Awaitable[Page]]
PHONE: dict[str, Any] = {
    "viewport": {"width": 390, "height": 844},
    "is_mobile": True,
    "has_touch": True,
    "device_scale_factor": 2,
}

RECORD_LENGTHS = """() => {
  window.lengths = [];
  const note = () => {
    const length = document.querySelector('[data-testid="card"] .md')?.textContent.length ?? 0;
    if (length !== window.lengths.at(-1)) window.lengths.push(length);
  };
  new MutationObserver(note).observe(document.getElementById("messages"), {subtree: true, childList: true, characterData: true});
}"""

XSS = """Hello <img src=x onerror="window.pwned=1"> <script>window.pwned=2</script>

<svg onload="window.pwned=3"></svg> <iframe srcdoc="<script>parent.pwned=4</script>"></iframe>

[one](javascript:window.pwned=5) [two](data:text/html;base64,PHNjcmlwdD4=) [three](vbscript:x) [four](JaVaScRiPt:x)
[five](https://example.com/"onmouseover="window.pwned=6) ![pixel](http://192.0.2.1/track.png) ![x](javascript:alert(1))

<a href="javascript:window.pwned=7">tag</a> <at id="x onerror=1"></at> <font color="red;x">font</font> <style>*{display:none}</style>

```html"><img src=x onerror=window.pwned=8>
<img src=x onerror="window.pwned=9">
```
"""


async def ask(page: Page, text: str) -> None:
    """Type a message and press Enter."""
    await page.get_by_test_id("composer").fill(text)
    await page.get_by_test_id("composer").press("Enter")


async def finished(page: Page) -> None:
    """The last card has stopped growing."""
    await expect(page.get_by_test_id("button-regenerate").last).to_be_visible()
    await expect(page.get_by_test_id("card-streaming")).to_have_count(0)
    await expect(page.locator(".md.is-typing")).to_have_count(0)


async def test_a_question_is_answered_in_one_card_that_grows(
    open_page: OpenPage, stage: MockStage
) -> None:
    stage.step_s = 0.2
    stage.may_finish.clear()
    page = await open_page()
    await page.evaluate(RECORD_LENGTHS)
    await ask(page, "Why does water boil earlier in the mountains?")
    await expect(page.get_by_test_id("card-streaming")).to_be_visible()
    await expect(page.get_by_test_id("typing")).to_be_visible()
    await expect(page.get_by_test_id("chat-oc_group")).to_contain_text("[Generating…]")
    stage.may_finish.set()
    await finished(page)

    await expect(page.get_by_test_id("card")).to_have_count(1)
    card = page.get_by_test_id("card")
    await expect(card).to_contain_text("That is why pasta takes longer in the mountains.")
    await expect(card.locator("li")).to_have_count(2)
    await expect(card.locator("pre code")).to_have_text(
        "def boiling_point(height_m: float) -> float:\n    return 100 - height_m / 300"
    )
    lengths: list[int] = await page.evaluate("window.lengths")
    assert len(lengths) > 2 * stage.steps, "the typewriter fills the time between two updates"
    assert stage.said == [
        {
            "chat_id": "oc_group",
            "user_id": "ou_lin",
            "text": "Why does water boil earlier in the mountains?",
            "mention_bot": True,
        }
    ]
    await expect(page.get_by_test_id("composer")).to_have_value("")
    await expect(page.get_by_test_id("typing")).to_have_count(0)
    await expect(page.get_by_test_id("announcer")).to_contain_text("That is why pasta")


async def test_stop_and_the_other_buttons_reach_the_bot(
    open_page: OpenPage, stage: MockStage
) -> None:
    stage.may_finish.clear()
    page = await open_page()
    await ask(page, "Tell me a long story")
    await page.get_by_test_id("button-stop").click()
    await expect(page.get_by_test_id("toast")).to_contain_text("Stopping")
    await finished(page)
    await expect(page.get_by_test_id("card")).to_contain_text("Stopped.")
    await expect(page.get_by_test_id("card")).not_to_contain_text("pasta")
    await page.get_by_test_id("button-new_topic").click()
    await expect(page.get_by_test_id("toast").last).to_contain_text("Done")
    assert [(one["value"]["action"], one["user_id"]) for one in stage.pressed] == [
        ("stop", "ou_lin"),
        ("new_topic", "ou_lin"),
    ]


async def test_hostile_text_stays_text(open_page: OpenPage, stage: MockStage) -> None:
    stage.answer, stage.steps = XSS, 3
    stage.chats[0]["name"] = '<img src=x onerror="window.pwned=20">'
    page = await open_page()
    await ask(
        page,
        '<img src=x onerror="window.pwned=21"> javascript:alert(1) https://example.com/"onclick=1',
    )
    await finished(page)
    stage.trace(
        "api", "<script>window.pwned=22</script>", {"<b>": "<img src=x onerror='window.pwned=23'>"}
    )
    hostile = page.get_by_test_id("trace-item").filter(has_text="window.pwned=22")
    await hostile.locator("button").first.click()
    await expect(hostile).to_contain_text("window.pwned=23")
    await page.reload()
    await expect(page.get_by_test_id("card")).to_contain_text("onerror")

    assert await page.evaluate("window.pwned") is None
    assert (
        await page.locator(
            "#app :is(img, iframe, script, style, object, embed, form:not(#new-chat-form))"
        ).count()
        == 0
    )
    links: list[str] = await page.locator("#messages a").evaluate_all(
        "all => all.map((a) => a.href)"
    )
    assert links, "the plain https links are links"
    assert all(link.startswith(("https://example.com/", "http://192.0.2.1/")) for link in links)
    attributes: list[str] = await page.locator("#messages *").evaluate_all(
        "all => all.flatMap((n) => n.getAttributeNames())"
    )
    assert not [name for name in attributes if name.startswith("on") or name in {"srcdoc", "src"}]
    await expect(page.locator(".no-image").first).to_contain_text("pixel")


async def test_the_language_follows_the_browser_and_is_kept(open_page: OpenPage) -> None:
    page = await open_page(locale="zh-CN")
    await expect(page.locator("html")).to_have_attribute("lang", "zh-CN")
    await expect(page.get_by_test_id("new-chat")).to_have_text("新建群聊")
    await page.get_by_test_id("lang-switch").click()
    await expect(page.locator("html")).to_have_attribute("lang", "en")
    await expect(page.get_by_test_id("new-chat")).to_have_text("New group")
    await expect(page.get_by_test_id("composer")).to_have_attribute(
        "placeholder", "Ask Hearth something…"
    )
    await page.reload()
    await expect(page.get_by_test_id("new-chat")).to_have_text("New group")
    tables: list[list[str]] = await page.evaluate(
        "import('/static/js/strings.js').then((m) => [m.en, m.zh].map((t) => Object.keys(t).filter((k) => !k.endsWith('_one')).sort()))"
    )
    assert tables[0] == tables[1]
    used: list[str] = await page.evaluate(
        """[...document.querySelectorAll('[data-i18n], [data-i18n-attr]')].flatMap((n) => [n.dataset.i18n,
            ...(n.dataset.i18nAttr ?? '').split(';').map((p) => p.split(':')[1])]).filter(Boolean)"""
    )
    assert set(used) <= set(tables[0])


async def test_enter_sends_but_not_while_an_input_method_composes(
    open_page: OpenPage, stage: MockStage
) -> None:
    page = await open_page()
    field = page.get_by_test_id("composer")
    await field.fill("ni hao")
    for how in ("isComposing: true", "keyCode: 229"):
        await field.evaluate(
            f"n => n.dispatchEvent(new KeyboardEvent('keydown', {{key: 'Enter', bubbles: true, cancelable: true, {how}}}))"
        )
    await expect(field).to_have_value("ni hao")
    await field.press("Shift+Enter")
    await field.press_sequentially("second line")
    await expect(field).to_have_value("ni hao\nsecond line")
    assert stage.said == []
    await field.press("Enter")
    await expect(field).to_have_value("")
    assert [one["text"] for one in stage.said] == ["ni hao\nsecond line"]
    await field.press("ArrowUp")
    await expect(field).to_have_value("ni hao\nsecond line")


async def test_mentions_commands_and_speakers(open_page: OpenPage, stage: MockStage) -> None:
    page = await open_page()
    field, picker = page.get_by_test_id("composer"), page.get_by_test_id("picker")
    await page.get_by_test_id("mention-chip").click()
    await expect(page.get_by_test_id("mention-chip")).to_have_attribute("aria-pressed", "false")
    await ask(page, "nobody is asked")
    await expect(page.get_by_test_id("message")).to_have_count(1)
    await field.press_sequentially("hi @")
    await expect(picker.get_by_role("option")).to_have_count(2)
    await field.press("Enter")
    await expect(page.get_by_test_id("mention-chip")).to_have_attribute("aria-pressed", "true")
    await expect(field).to_have_value("hi ")
    await field.press_sequentially("@a")
    await field.press("Tab")
    await expect(field).to_have_value("hi @Alex ")
    await field.fill("/st")
    await expect(picker.get_by_role("option")).to_have_count(2)
    await field.press("Escape")
    await expect(picker).to_be_hidden()
    await field.fill("/")
    await page.get_by_test_id("pick-status").click()
    await expect(field).to_have_value("/status")
    await page.get_by_test_id("speaker-ou_alex").click()
    await expect(page.get_by_test_id("toast")).to_contain_text("You are now Alex")
    await field.press("Enter")
    await finished(page)
    assert [(one["user_id"], one["text"], one["mention_bot"]) for one in stage.said] == [
        ("ou_lin", "nobody is asked", False),
        ("ou_alex", "/status", True),
    ]
    own = page.locator(".msg.is-own")
    await expect(own).to_have_count(1)
    await page.get_by_test_id("speaker-ou_lin").click()
    await expect(own).to_contain_text("nobody is asked")


async def test_recall_reply_and_jump(open_page: OpenPage, stage: MockStage) -> None:
    page = await open_page()
    await ask(page, "First question")
    await finished(page)
    await page.get_by_test_id("message").last.hover()
    await page.get_by_test_id("message").last.get_by_test_id("tool-reply").click()
    await expect(page.get_by_test_id("reply-target")).to_contain_text("Replying to Hearth")
    await page.get_by_test_id("composer").press("Escape")
    await expect(page.get_by_test_id("reply-target")).to_be_hidden()
    await expect(page.get_by_test_id("message").last.get_by_test_id("tool-recall")).to_have_count(0)
    await page.get_by_test_id("message").first.hover()
    await page.get_by_test_id("message").first.get_by_test_id("tool-reply").click()
    await ask(page, "Second question")
    await finished(page)
    assert stage.said[1]["reply_to"] == "om_1"
    await page.get_by_test_id("message").first.hover()
    await page.get_by_test_id("message").first.get_by_test_id("tool-recall").click()
    await expect(page.get_by_test_id("message").first).to_have_text("You recalled a message")
    assert stage.recalled == ["om_1"]


async def test_chats_direct_chats_and_topics(open_page: OpenPage, stage: MockStage) -> None:
    page = await open_page()
    await page.get_by_test_id("new-chat").click()
    await page.get_by_test_id("new-chat-name").fill("Kitchen")
    await page.get_by_test_id("new-chat-create").click()
    await expect(page.locator("#room-title")).to_have_text("Kitchen")
    await expect(page.get_by_test_id("message")).to_contain_text("I am Hearth")
    await page.get_by_test_id("speaker-ou_alex").click()
    await page.get_by_test_id("chat-oc_direct").click()
    await expect(page.get_by_test_id("speaker-ou_lin")).to_have_attribute("aria-checked", "true")
    await expect(page.get_by_test_id("mention-chip")).to_be_hidden()
    await ask(page, "Only us")
    await finished(page)
    await page.get_by_test_id("chat-oc_topic").click()
    await ask(page, "Topic one")
    await finished(page)
    await ask(page, "Topic two")
    await expect(page.locator(".thread")).to_have_count(2)
    await page.locator(".thread-reply").first.click()
    await ask(page, "More on one")
    await expect(page.locator(".thread").first).to_contain_text("More on one")
    stage.send(
        "message",
        stage.put("oc_group", {"id": "ou_alex", "name": "Alex", "bot": False}, "over here"),
    )
    await expect(page.get_by_test_id("chat-oc_group").locator(".unread")).to_be_visible()
    await page.keyboard.press("Control+k")
    await page.keyboard.type("Hearth 试")
    await page.keyboard.press("Enter")
    await expect(page.locator("#room-title")).to_have_text("Hearth 试用群")
    await expect(page.get_by_test_id("chat-oc_group").locator(".unread")).to_have_count(0)


async def test_the_wire_panel_shows_filters_and_opens_each_call(
    open_page: OpenPage, stage: MockStage
) -> None:
    page = await open_page()
    await ask(page, "Hello")
    await finished(page)
    items = page.get_by_test_id("trace-item")
    await expect(items).to_have_count(1 + 1 + stage.steps + 1)
    await page.get_by_test_id("trace-kind-webhook").click()
    await expect(items).to_have_count(1)
    await expect(page.get_by_test_id("trace-shown")).to_have_text("1 of 11")
    await items.first.locator("button").first.click()
    await expect(items.first.locator(".trace-detail")).to_contain_text('"event"')
    await page.get_by_test_id("trace-kind-all").click()
    await page.get_by_test_id("trace-filter").fill("card.content #3")
    await expect(items).to_have_count(1)
    await page.get_by_test_id("trace-filter").fill("")
    await page.get_by_test_id("tab-faults").click()
    for kind in ("rate_limit", "duplicate", "slow", "down"):
        await page.get_by_test_id(f"fault-{kind}").click()
        await expect(page.get_by_test_id(f"fault-{kind}")).to_be_enabled()
    assert stage.faults == ["rate_limit", "duplicate", "slow", "down"]
    await expect(page.get_by_test_id("fault-strip")).to_contain_text("Feishu is down")
    await page.get_by_test_id("tab-traffic").click()
    await page.get_by_test_id("trace-kind-problem").click()
    await expect(items).to_have_count(1)
    await expect(items).to_contain_text("99991400")
    await page.get_by_test_id("trace-clear").click()
    await expect(items).to_have_count(0)
    await page.get_by_test_id("wire-toggle").click()
    await expect(page.get_by_test_id("wire")).to_be_hidden()


async def test_a_lost_connection_is_shown_and_made_good(
    open_page: OpenPage, stage: MockStage
) -> None:
    page = await open_page(tolerate="503")
    stage.failing = True
    stage.drop_streams()
    await expect(page.get_by_test_id("lost")).to_be_visible()
    stage.put(
        "oc_group", {"id": "ou_alex", "name": "Alex", "bot": False}, "said while nobody listened"
    )
    stage.failing = False
    await expect(page.get_by_test_id("lost")).to_be_hidden(timeout=15_000)
    await expect(page.get_by_test_id("message")).to_contain_text("said while nobody listened")
    await ask(page, "still there?")
    await finished(page)


async def test_on_a_phone_nothing_is_wider_than_the_screen(
    open_page: OpenPage, stage: MockStage
) -> None:
    wide = "| a | b | c |\n|---|---|---|\n| " + " | ".join(["wide_" * 12] * 3) + " |"
    stage.answer = (
        f"{'x' * 300}\n\n```\n{'code ' * 60}\n```\n\n{wide}\n\nhttps://example.com/{'path/' * 40}"
    )
    page = await open_page(**PHONE)
    await ask(page, "y" * 300)
    await finished(page)
    for theme in ("light", "dark"):
        await page.emulate_media(color_scheme=theme)
        widths = await page.evaluate(
            "[document.documentElement.scrollWidth, document.getElementById('log').scrollWidth, innerWidth]"
        )
        assert max(widths) == 390
    assert await page.get_by_test_id("card").evaluate("n => n.getBoundingClientRect().right") <= 390
    await expect(page.get_by_test_id("wire")).to_be_hidden()
    await page.get_by_test_id("wire-toggle").click()
    await expect(page.get_by_test_id("trace-item").first).to_be_visible()
    await page.get_by_test_id("wire-close").click()
    await expect(page.get_by_test_id("wire")).to_be_hidden()
    await page.get_by_test_id("open-chats").click()
    await page.get_by_test_id("chat-oc_topic").click()
    await expect(page.locator("#side")).to_be_hidden()
    await expect(page.locator("#room-title")).to_have_text("Design topics")


async def test_less_motion_means_no_typewriter(open_page: OpenPage, stage: MockStage) -> None:
    page = await open_page(reduced_motion="reduce")
    await page.evaluate(RECORD_LENGTHS)
    await ask(page, "Hello")
    await finished(page)
    lengths: list[int] = await page.evaluate("window.lengths")
    assert 1 < len(lengths) <= stage.steps + 1, "every update is shown whole"


async def test_the_tiny_model_is_named_and_the_way_out_is_shown(open_page: OpenPage) -> None:
    page = await open_page()
    await expect(page.get_by_test_id("banner")).to_contain_text(
        "SmolLM2-135M-Instruct speaks only English"
    )
    await page.get_by_test_id("use-real-model").click()
    dialog = page.get_by_test_id("model-dialog")
    await expect(dialog).to_contain_text('backend = "llama.cpp"')
    await expect(dialog).to_contain_text("hearth serve --config config.toml")
    await page.keyboard.press("Escape")
    await expect(dialog).to_be_hidden()
    await page.get_by_test_id("banner-hide").click()
    await page.reload()
    await expect(page.get_by_test_id("model-chip")).to_contain_text("tiny demo model")
    await expect(page.get_by_test_id("banner")).to_be_hidden()


async def test_every_control_has_a_name_and_enough_contrast(open_page: OpenPage) -> None:
    page = await open_page()
    await ask(page, "Hello")
    await finished(page)
    nameless: list[str] = await page.evaluate(
        """[...document.querySelectorAll('button, input, textarea')].filter((n) => !n.getAttribute('aria-label') &&
           !n.textContent.trim() && !n.labels?.length).map((n) => n.outerHTML.slice(0, 80))"""
    )
    assert nameless == []
    for theme in ("light", "dark"):
        await page.emulate_media(color_scheme=theme)
        ratios: dict[str, float] = await page.evaluate(CONTRASTS)
        assert {pair: ratio for pair, ratio in ratios.items() if ratio < 4.5} == {}, theme


CONTRASTS = """() => {
  const style = getComputedStyle(document.documentElement);
  const light = (name) => {
    const hex = style.getPropertyValue(`--${name}`).trim().slice(1);
    const [r, g, b] = [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16) / 255)
      .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const pairs = [];
  for (const back of ['bg', 'surface', 'raised', 'sunken']) {
    for (const ink of ['text', 'muted', 'human', 'ember', 'bad', 'good']) pairs.push([ink, back]);
  }
  pairs.push(['text', 'human-bubble'], ['human', 'human-bubble'], ['ember', 'ember-soft'], ['human', 'human-soft'],
    ['bad', 'bad-soft'], ['text', 'warn-soft'], ['human', 'warn-soft'], ['ember', 'warn-soft'], ['human-on', 'human'], ['text', 'pill']);
  return Object.fromEntries(pairs.map(([ink, back]) => {
    const [a, b] = [light(ink), light(back)].sort((x, y) => y - x);
    return [`${ink} on ${back}`, Number(((a + 0.05) / (b + 0.05)).toFixed(2))];
  }));
}"""


async def test_columns_of_chinese_lie_flat_and_arabic_begins_on_its_side(
    open_page: OpenPage, stage: MockStage
) -> None:
    stage.answer = "| 名称 | A value that is long |\n| --- | --- |\n| 苹果 | " + "a word " * 40 + "|\n\nمرحبا English.\n\n- one\n  - two\n"  # fmt: skip
    page = await open_page(**PHONE)
    await ask(page, "fruit")
    await finished(page)
    card = page.get_by_test_id("card")
    height = "cell => { const range = document.createRange(); range.selectNodeContents(cell); return range.getClientRects().length; }"
    assert await card.locator("th").first.evaluate(height) == 1
    gap = "p => { const range = document.createRange(); range.selectNodeContents(p); return p.getBoundingClientRect().right - range.getBoundingClientRect().right; }"
    assert await card.locator("p", has_text="English").evaluate(gap) < 2
