"""A chat template has a limit, whatever it repeats; what ordinary templates do is far below it."""

from __future__ import annotations

from typing import Any

import pytest

from midstream.protocol import Message
from realtime.text.chat_template import BUDGET, ChatTemplate, NotBriefError, TextError
from realtime.text.template_sandbox import Budget, BudgetSpentError, MeteredEnvironment
from tests.fakes import small_tokenizers as small

LONG = "x" * 100_000
ENDLESS = {
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "filtered loops": "{% for i in range(999) %}{% for j in range(99999) if j < 0 %}{% endfor %}{% endfor %}",
    "macros": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "callers": (
        "{% macro f(n) %}{% if n %}{% for i in range(9) %}{% call f(n - 1) %}{% endcall %}{% endfor %}"
        "{% endif %}{{ caller() }}{% endmacro %}{% call f(30) %}{% endcall %}"
    ),
    "recursive loops": (
        "{% for x in range(9) recursive %}{% if loop.depth < 20 %}{{ loop(range(9)) }}{% endif %}{% endfor %}"
    ),
    "wide recursive loops": (
        "{% for x in range(9) recursive %}"
        "{% if loop.depth < 3 %}{{ loop(range(99999)) }}{% endif %}{% endfor %}"
    ),
    "filters": "{% for i in range(999) %}{{ range(9999) | map('string') | map('upper') | list }}{% endfor %}",
    "calls": "{% for i in range(9999) %}{% for j in range(999) %}{{ 'a b'.split() }}{% endfor %}{% endfor %}",
    "paragraphs": "{{ lipsum(10 ** 9) }}",
}
DOUBLING = "{{% set ns = namespace(s='x') %}}{{% for i in range(99) %}}{{% set ns.s = {0} %}}{{% endfor %}}"
LARGE = {
    "+": DOUBLING.format("ns.s + ns.s"),
    "~": DOUBLING.format("ns.s ~ ns.s"),
    "join": DOUBLING.format("[ns.s, ns.s] | join"),
    "replace": DOUBLING.format("ns.s | replace('x', 'xx')"),
    "lists": DOUBLING.format("ns.s * 9").replace("'x'", "[1]"),
    "times": "{{ 'a' * 10 ** 12 }}",
    "list times": "{{ [1] * 10 ** 12 }}",
    "power": "{{ 9 ** (9 ** 9) }}",
    "squares": DOUBLING.format("ns.s * ns.s").replace("'x'", "3"),
    "width": "{{ 'a' | center(10 ** 12) }}",
    "method": "{{ 'a'.ljust(10 ** 12) }}",
    "indent": "{{ [1, 2] | tojson(indent=10 ** 12) }}",
    "block": "{% set s %}{% for i in range(99999) %}{{ messages[0].content }}{% endfor %}{% endset %}{{ s }}",
    "output": "{% for i in range(99999) %}{{ messages[0].content }}{% endfor %}",
}


def rendered(source: str, content: str = LONG, **options: Any) -> str:
    messages = [{"role": "user", "content": content}, {"role": "assistant", "content": "é"}]
    return ChatTemplate(source, {}).render(messages, add_generation_prompt=True, **options)


@pytest.mark.parametrize("source", [*ENDLESS.values(), *LARGE.values()], ids=[*ENDLESS, *LARGE])
def test_a_template_that_does_too_much_is_given_up(source: str) -> None:
    with pytest.raises(TextError, match="more to do for these messages than the limit allows"):
        rendered(source)


def test_a_macro_that_calls_itself_for_ever_fails() -> None:
    with pytest.raises(TextError, match="fails on these messages"):
        rendered("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}")


@pytest.mark.parametrize("source", ENDLESS.values(), ids=ENDLESS)
def test_in_brief_it_is_given_up_early(source: str) -> None:
    with pytest.raises(NotBriefError):
        rendered(source, "Hi", brief=True)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (
            "{% for m in messages %}{{ loop.index }}/{{ loop.length }}{{ loop.last }} {% endfor %}",
            "1/2False 2/2True ",
        ),
        ("{% for m in messages if m.role == 'user' %}{{ m.content }}{% else %}no{% endfor %}", "Hi"),
        ("{% for m in nothing %}x{% else %}none{% endfor %}", "none"),
        ("{% for k, v in messages[0].items() %}{{ k }}={{ v }};{% endfor %}", "role=user;content=Hi;"),
        ("{% for k, v in messages[0] | dictsort %}{{ k }} {% endfor %}", "content role "),
        ("{% for c in 'abc' %}{{ loop.revindex }}{{ c }}{% endfor %}", "3a2b1c"),
        ("{% for x in [1, [2, [3]]] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}", "123"),
        ("{% for m in messages %}{{ loop.cycle('a', 'b') }}{% endfor %}", "ab"),
        ("{{ messages | map(attribute='role') | join(',') }}", "user,assistant"),
        ("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}", "1"),
        ("{{ 'a' ~ 5 ~ undefined ~ none ~ 'é' }}", "a5Noneé"),
        (
            "{{ '%s-%d' % ('a', 3) }} {{ '{}!'.format(2) }} {{ 2 ** 3 * 4 + 1 }} {{ '-' * 3 }}",
            "a-3 2! 33 ---",
        ),
        ("{% filter upper %}a{{ 'b' }}{% endfilter %}", "AB"),
        ("{% macro m(x) %}{{ caller(x) }}{% endmacro %}{% call(y) m('z') %}<{{ y }}>{% endcall %}", "<z>"),
        (
            "{% set a = namespace(n=0) %}{% for m in messages %}{% set a.n = a.n + 1 %}{% endfor %}{{ a.n }}",
            "2",
        ),
        ("{{ messages[::-1][0].role }}{{ messages[1:] | length }}", "assistant1"),
    ],
)
def test_a_metered_template_writes_what_it_would_write_otherwise(source: str, text: str) -> None:
    assert rendered(source, "Hi", brief=True) == text


@pytest.mark.parametrize("template", [small.CHATML, small.INSTRUCT])
def test_long_conversations_are_far_below_the_limit(template: str) -> None:
    messages = [{"role": role, "content": "Hi"} for _ in range(5000) for role in ("user", "assistant")]
    chat = ChatTemplate(template, small.ROLES)
    budget = Budget(BUDGET)
    with budget.spending():
        text = chat._template.render(messages=messages, add_generation_prompt=True, **small.ROLES)
    assert chat.render(messages, add_generation_prompt=True) == text


@pytest.mark.parametrize("template", [small.CHATML, small.INSTRUCT])
def test_a_short_conversation_is_brief(template: str) -> None:
    tokenizer = small.byte_level(template)
    turns = [Message(role=role, content=50 * "x") for _ in range(20) for role in ("user", "assistant")]
    assert tokenizer.encode_chat(turns, brief=True) == tokenizer.encode_chat(turns)
    assert tokenizer.encode_turns(turns[:1], brief=True) == tokenizer.encode_turns(turns[:1])


def test_a_budget_is_spent_once_and_belongs_to_its_context() -> None:
    template_of = MeteredEnvironment([], {}).metered_template
    outer, inner = Budget(10_000), Budget(100)
    with outer.spending():
        template = template_of("{% for i in range(9) %}{% endfor %}")
        with inner.spending(), pytest.raises(BudgetSpentError):
            template.render()
        template.render()
