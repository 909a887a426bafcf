"""A hostile or broken chat template is stopped in good time and with one clear sentence; a decent one just works."""

import pytest

from engine.text.sandbox import CompiledTemplate, TemplateFault
from engine.text.specials import SpecialTexts


def render(source, *messages, add_generation_prompt=True):
    template = CompiledTemplate(source, bos_text="<s>", eos_text="</s>")
    return template.render(
        messages or [("user", "hi")], add_generation_prompt=add_generation_prompt
    )


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", "<s>hi</s>"),
        ("{% if true %}\n    x\n{% endif %}\ny", "    x\ny"),  # trim_blocks, lstrip_blocks
        (
            "{% for i in range(5) %}{% if i == 1 %}{% continue %}{% elif i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}",
            "02",
        ),
        ("{% generation %}a{{ 1 + 1 }}{% endgeneration %}b", "a2b"),
        ("{{ {'a': '<é>'}|tojson }}", '{"a": "<é>"}'),
        ("{{ [1]|tojson(indent=2) }}", "[\n  1\n]"),
        ("{{ strftime_now('%Y')|length }}", "4"),
        ("{{ tools is none }}{{ messages[0].tool_calls is defined }}", "TrueFalse"),
        (
            "{% for m in messages %}{{ loop.first }}{{ loop.last }}{{ loop.length }}{% endfor %}",
            "TrueTrue1",
        ),
        ("{{ '%s-%d' % ('a', 3) }}{{ 7 % 3 }}{{ 'ab' * 2 }}{{ 2 ** 3 }}", "a-31abab8"),
        (
            "{{ '%s'|format('x') }}{{ '{}'.format('y') }}{{ 'z'|upper }}{{ 'abc'.split('b')[-1] }}",
            "xyZc",
        ),
        ("{% macro say(x) %}[{{ x }}]{% endmacro %}{{ say('a') ~ say('b') }}", "[a][b]"),
        ("{{ messages|map(attribute='role')|join(',') }}", "user"),
        (
            "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
            "1",
        ),
    ],
)
def test_the_dialect_of_hugging_face_templates(source, expected):
    assert render(source) == expected


def test_the_generation_prompt_is_asked_for():
    source = "{% if add_generation_prompt %}yes{% else %}no{% endif %}"
    assert render(source) == "yes"
    assert render(source, add_generation_prompt=False) == "no"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (
            "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
            "too many steps",
        ),
        (
            "{% macro f(n) %}{{ f(n - 1) }}{{ f(n - 1) }}{% endmacro %}{{ f(9) }}",
            "recursion|too many steps",
        ),
        (
            "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
            "too many steps",
        ),
        ("{% for i in range(99999) %}{{ range(99999)|sum }}{% endfor %}", "too many steps"),
        (
            "{% set ns = namespace(x='aaaa') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
            "too many steps|too large",
        ),
        (
            "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
            "too many steps|too large",
        ),
        ("{% set a = 'a' * 100000 %}{{ ([a] * 100000)|string|length }}", "too large"),
        ("{% set a = 'a' * 100000 %}{{ ([a] * 100000)|tojson|length }}", "too large"),
        ("{% set a = 'a' * 100000 %}{{ [a] * 100000 }}", "too large"),
        ("{% set a = 'a' * 100000 %}{{ ([a] * 100000) ~ 'x' }}", "too large"),
        ("{% set a = 'a' * 100000 %}{{ ('%s' % [[a] * 100000])|length }}", "too large"),
        ("{% set a = 'a' * 100000 %}{{ '{}'.format([a] * 100000)|length }}", "too large"),
        ("{% set a = 'a' * 100000 %}{{ ([a] * 100000)|join('')|length }}", "too large"),
        ("{% set a = 'a' * 100000 %}{{ a.join([a] * 100000)|length }}", "too large"),
        ("{% set a = 'a' * 100000 %}{{ a|replace('a', 'b' * 100000)|length }}", "too large"),
        ("{% set a = 'a' * 100000 %}{{ a.replace('a', 'b' * 100000)|length }}", "too large"),
        (
            "{% set a = 'a' * 100000 %}{{ a|wordwrap(1, wrapstring='x' * 100000)|length }}",
            "too large",
        ),
        ("{{ ('\n' * 100000)|indent(100000, blank=true)|length }}", "too large"),
        ("{{ ('\t' * 100000).expandtabs(100000)|length }}", "too large"),
        ("{{ 'aa'.translate({97: 'b'}) }}", "translate"),
        ("{{ ([[[1]]] * 50000)|tojson(indent=100000)|length }}", "too far"),
        (
            (
                "{% set ns = namespace(a=[], b=[]) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}"
                "{% set ns.b = [ns.b, ns.b] %}{% endfor %}{{ ns.a == ns.b }}"
            ),
            "too large",
        ),
        ("{% for x in [[1]] recursive %}{{ loop(x) }}{% endfor %}", "recursive"),
        ("{{ 'a' * 1000000000 }}", "too often"),
        ("{{ 1000000000 * [1] }}", "too often"),
        ("{{ 9 ** 99999999 }}", "huge power"),
        ("{{ 'x'|center(999999999) }}", "too large"),
        ("{{ 'x'|center(width=999999999) }}", "too large"),
        ("{{ 'x'.ljust(999999999) }}", "too large"),
        ("{{ '%999999999d' % 1 }}", "pads"),
        ("{{ '%999999999d'|format(1) }}", "pads"),
        ("{{ '{:999999999}'.format(1) }}", "pads"),
        ("{{ range(10 ** 10) }}", "too large|huge"),
        ("{{ messages[0].content.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{% include 'other' %}", "loader"),
        ("{{ raise_exception('only user and assistant') }}", "only user and assistant"),
        ("{{ messages[0].content.nothing.more }}", "undefined|has no attribute"),
        ("{{ 1 / 0 }}", "division"),
    ],
)
def test_what_must_not_be_is_refused_with_its_reason(source, reason):
    with pytest.raises(TemplateFault, match=reason):
        render(source)


def test_a_broken_or_gigantic_source_is_refused_before_it_runs():
    with pytest.raises(TemplateFault, match="cannot be compiled"):
        render("{% for")
    with pytest.raises(TemplateFault, match="longer than"):
        render("x" * 600_000)


def test_the_budget_starts_afresh_with_every_rendering():
    template = CompiledTemplate(
        "{% for i in range(60000) %}{% endfor %}ok", bos_text="", eos_text=""
    )
    for _ in range(3):
        assert template.render([("user", "x")], add_generation_prompt=True) == "ok"


def test_special_texts_are_found_also_when_they_overlap():
    specials = SpecialTexts(["<|a|>", "<|a", "|>", "", "[X]"])
    assert list(specials.spans("<|a|>[X]")) == [(0, 3), (0, 5), (3, 5), (5, 8)]
    assert list(SpecialTexts([]).spans("<|a|>")) == []
    assert "[X]" in specials


def test_a_control_text_completed_by_its_surroundings_is_noticed():
    specials = SpecialTexts(["<|end|>"])
    assert specials.touch("", "a<|end|>b", "")
    assert specials.touch("", "a<|en", "d|>\n")
    assert specials.touch("x<|", "end|>", "")
    assert specials.touch("x<|", "end", "|>")
    assert not specials.touch("<|end|>", "hello", "<|end|>")
    assert not specials.touch("", "<|end>", "")


def test_neutralised_text_holds_no_control_text():
    specials = SpecialTexts(["<|a|>", "<|a"])
    for text in ("<|a|>", "x<|a<|a|>y", "plain"):
        safe = specials.neutralise(text)
        assert list(specials.spans(safe)) == []
        assert safe.replace("\u200b", "") == text
