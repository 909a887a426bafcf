"""What kind of thing a message says, as far as its wording shows it: a question, a figure, something settled or outdated.

Pure; general words of English and Chinese only. Texts are looked at as `bot.domain.segment.fold` leaves them.
"""

from __future__ import annotations

import re

from bot.domain.segment import stem

# Words that hold a sentence together and say nothing of what it is about.
FUNCTION_WORDS = frozenset(
    stem(match.group())
    for match in re.finditer(
        r"\w+",
        """
        a an the this that these those i me my we us our you your he him his she her it its they them their one s t m re ve ll d
        is are was were be been am do does did done have has had can could will would shall should may might must not no nor so if
        then than and or but of in on at to from for with by about into over up down out off as when where who whom which what why
        how much many long often any some all just only too very also still again there here now please tell say says said
        hi hello hey ok okay yes yeah well thanks thank sorry great nice good morning bye sure right fine lol haha
        """,
    )
)
FUNCTION_CHARS = frozenset(
    "的了是在吗呢吧啊呀嘛么什哪谁几怎这那我你他她它们个和跟与或把被让给也都就还很太更最着过得地之而且但因为所以如果虽多少有没不要会能可到去来说想请该用"
)
# What makes a sentence a question, and courtesies: they say what kind of answer is wanted, not what about.
INTERROGATIVES = re.compile(
    r"什么时[候间]|什么|怎么样?|为什么|哪[里儿个些位家种天年边条台款间份]?|谁|几[个点号时位]|多少|多[久大长高重远宽]|[是会能有]不[是会能]|有没有|如何|何时|为何"
    r"|[吗呢吧啊呀么](?=\W|$)|请问|帮我|告诉我"
    r"|谢谢|多谢|你好|您好|大家好|好[的了](?=\W|$)|收到|明白|知道了|早[上安]好?|晚[上安]好?|下午好|再见|辛苦了|不客气|没事|哈+"
)
# Not yet an answer: open, unknown, put off.
OPEN = re.compile(
    r"不知道|不清楚|不确定|没找到|没人|还没|待定|另说|再说|再定|再议|[要去]问|谁.{0,8}[?？]"
    r"|\b(?:not sure|no idea|don't know|nobody|no one|tbd|pending|waiting|ask(?:ed|ing)?|maybe|perhaps|leaning|might|thinking about|not yet)\b"
)
ASKS = re.compile(
    r"[?？]\s*[^\w\s]*\s*$|[吗呢]\W*$|^(?:谁|哪|怎么|什么时候)"
    r"|^(?:who|what|where|when|which|why|how|does|is there|are there|can|could|do you)\b"
)
# A message that asks for something, be it without a question mark.
REQUESTS = re.compile(
    r"什么|哪[里儿个些位家天年]?|谁|几[个点号时位]|多少|怎么|如何|何时|告诉|提醒我|[找查报说]一?下|记得吗|来着|[?？]"
    r"|\b(?:who|what|where|when|which|whose|how|remind me|tell me|show me|give me|find|remember|look up|recall)\b"
)
WANTS_FIGURE = re.compile(
    r"几|多少|多[久大长高重远宽深厚快]|何时|什么时[候间]|哪[天年日]|号码|编号|价[格钱]"
    r"|\bhow (?:much|many|long|often|big|far|old|tall|heavy|large|wide|high|deep|fast)\b|\bwhen\b"
    r"|\b(?:what|which)(?: \w+){0,2} (?:time|date|day|number|size|port|price|code|year|version|temperature|weight)\b"
)
FIGURE = re.compile(
    r"\d|[一二三四五六七八九十百千两半][个点块元号月日天周年层楼台件次米斤度折条张位瓶分小码桶级成]|百分之|[二三四五六七八九十]{2}"
)
SUPERSEDED = re.compile(
    r"原[来本先定]|本来|以前|之前|上[个次周月回]|去年|昨天|旧的?|草稿|过期|当初"
    r"|\b(?:used to|was|were|wasn't|had been|previous(?:ly)?|former(?:ly)?|old|earlier|last (?:week|month|year)|until|draft|planned)\b"
)
SETTLED = re.compile(
    r"改[成为到在了用]|换[成到为了]|搬到|定[了在为]|确定|决定|说好|谈好|以后|从.{1,8}起|只[能要用]|必须|一律"
    r"|\b(?:now|moved|changed|switched|swapped|decided|decision|settled|agreed|booked|confirmed|from \w+ on|instead|any ?more|only)\b"
)
