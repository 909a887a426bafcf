"""What in a sentence is likely to matter later: figures, names, decisions, open questions. Pure; English and Chinese.

Small models lose exactly these, so the summarizer measures what came back by them, and takes whole sentences over where a
model gave nothing useful (`bot.domain.summary`).
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_HAN_NUMBER = "零〇一二三四五六七八九十百千万亿两半几"
# A figure with what it counts: 5月23号, 150份, 三块二, ¥1,200, 10:30, v2.3, 3rd, 40 %.
_FIGURE = re.compile(
    rf"[¥$€£]?\d[\d.,:/\-]*\d\s?[%°℃]?[a-zA-Z\u4e00-\u9fff]{{0,2}}|[¥$€£]?\d\s?[%°℃]?[a-zA-Z\u4e00-\u9fff]{{0,2}}"
    rf"|[{_HAN_NUMBER}]*[{_HAN_NUMBER}][个份人号月日点块元天周年层楼台箱件次页米斤吨度折成条张位组班届小时分钟千百万亿]"
    rf"|[{_HAN_NUMBER}]{{2,}}"
)
_QUOTED = re.compile(r"[“\"「『《]([^”\"」』》]{1,40})[”\"」』》]|`([^`]{1,60})`")
# Names as Latin script writes them (not a sentence's first word alone), and codes: INV-203, api_key, a@b.c, http://…
_NAME = re.compile(
    r"(?<![.!?]\s)(?<!^)\b[A-Z][a-z]+(?:\s[A-Z][a-z]+)*\b|\b[A-Z]{2,}[\w-]*\b|\b\w+[-_@/.]\w[\w\-_@/.]*\b"
)
_DECIDED = re.compile(
    r"定了|就这么定|那就|决定|确定|改成|改为|改到|换成|作废|取消|不要|不用|以后|必须|记得|负责|归|由.{1,8}来|上限|预算|截止|最晚|"
    r"地址|密码|电话|日期|时间是|选|同意|通过|批准|答应"
    r"|\b(?:decid|agree|confirm|settled|final|instead|cancel|change[ds]? to|moved to|must|deadline|budget|limit|owner|"
    r"responsible|will (?:do|bring|handle|take|call|send)|let'?s|go with|booked|ordered|due|address|password|at most|no more)",
    re.IGNORECASE,
)
_OPEN = re.compile(
    r"还没|待定|挂着|再说|问一下|去问|要问|不确定|等.{1,6}回|未定|没想好|\b(?:open question|not (?:yet|sure|decided)|tbd|pending|ask|find out|check with|still (?:need|open))\b",
    re.IGNORECASE,
)
_CHATTER = re.compile(
    r"^(?:好的?|收到|嗯+|哦+|行|可以|ok(?:ay)?|thanks?|thank you|谢谢|哈+|早|在吗|yes|no|sure|great|nice|lol|\W)*$",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"[^。！？!?\n；;]+(?:[。！？!?；;]+|\n|$)")
_LATIN_STOP = re.compile(r"(?<=[a-z0-9)][.])\s+(?=[A-Z])")
_WORD = re.compile(r"[A-Za-z][A-Za-z'-]{2,}|[\u4e00-\u9fff]")
_MAX_SENTENCE_CHARS = 160
_PHRASE_TIMES = 3


def fold(text: str) -> str:
    """Text for comparing: one width, one case, no spaces between what belongs together."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


@dataclass(frozen=True, slots=True)
class Sentence:
    """One thing that was said. `items` are folded."""

    speaker: str
    text: str
    order: int
    items: frozenset[str]
    value: float


def items_of(text: str) -> frozenset[str]:
    """The figures, names, codes and quoted words of a text, folded: what a summary must not lose."""
    found = [match.group().strip() for match in _FIGURE.finditer(text)]
    found += [match.group(1) or match.group(2) for match in _QUOTED.finditer(text)]
    found += [match.group() for match in _NAME.finditer(text)]
    return frozenset(folded for item in found if len(folded := fold(item)) > 1)


def split_sentences(text: str) -> list[str]:
    """A text in sentences; long ones are cut at commas, since one that fills a summary is of no use."""
    sentences: list[str] = []
    for match in _SENTENCE.finditer(text):
        for part in _LATIN_STOP.split(match.group().strip()):
            sentences += _short_parts(part)
    return [sentence for sentence in sentences if sentence]


def weigh(said: Iterable[tuple[str, str]]) -> list[Sentence]:
    """(speaker, text) in order → their sentences with what each is worth."""
    raw = [(speaker, part) for speaker, text in said for part in split_sentences(text)]
    n_with = Counter(word for _, part in raw for word in _words(part))
    phrases = _phrases(part for _, part in raw)
    return [
        Sentence(
            speaker,
            part,
            order,
            items_of(part),
            0.0 if fold(part) in phrases else _value(part, n_with, len(raw)),
        )
        for order, (speaker, part) in enumerate(raw)
    ]


def phrases_of(texts: Iterable[str]) -> frozenset[str]:
    """The sentences, folded, that are said over and over and tell nothing, as a small model's apologies."""
    return _phrases(part for text in texts for part in split_sentences(text))


def _phrases(sentences: Iterable[str]) -> frozenset[str]:
    counts = Counter(fold(sentence) for sentence in sentences)
    often = (text for text, n in counts.items() if n >= _PHRASE_TIMES)
    return frozenset(t for t in often if not (items_of(t) or _DECIDED.search(t)))


def _value(text: str, n_with: Counter[str], n_sentences: int) -> float:
    if _CHATTER.match(text):
        return 0.0
    n_items = len(items_of(text))
    words = _words(text)
    # Words that come back in the talk are what it is about; those everybody uses all the time are not.
    topical = sum(1.0 for word in words if 1 < n_with[word] <= max(3, n_sentences // 6))
    value = 1.0 + 1.6 * min(n_items, 4) + 0.5 * min(topical, 4) / 4
    value += 2.2 if _DECIDED.search(text) else 0.0
    value += 1.6 if _OPEN.search(text) else 0.0
    if text.rstrip().endswith(("?", "？", "吗", "呢")):
        value -= 1.2  # a question asks; what was answered is worth more
    return max(value, 0.1)


def _words(text: str) -> set[str]:
    folded = fold(text)
    words = {word for word in _WORD.findall(folded) if len(word) > 1}
    han = [char for char in folded if "\u4e00" <= char <= "\u9fff"]
    return words | {a + b for a, b in itertools.pairwise(han)}


def _short_parts(sentence: str) -> Sequence[str]:
    if len(sentence) <= _MAX_SENTENCE_CHARS:
        return [sentence]
    parts, current = [], ""
    for piece in re.split(r"(?<=[，,、])", sentence):
        if current and len(current) + len(piece) > _MAX_SENTENCE_CHARS:
            parts.append(current.strip())
            current = ""
        current += piece
    parts.append(current.strip())
    return [part[: 2 * _MAX_SENTENCE_CHARS] for part in parts]
