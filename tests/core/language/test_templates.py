"""The fast path of template analysis gives the same as Jinja's parser."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noetl.core.language.flow import template_analysis as templates
from noetl.core.language.flow.template_analysis import analyze_template
from noetl.core.templates.free_names import calls, free_names, syntax_error

SIMPLE = [
    "{{ workload.url }}",
    "{{workload.url}}/a/{{ iter.page }}",
    "{{- ctx.a -}} text",
    "{{ output.status == 'error' and output.http.status in [429, 500] }}",
    "{{ output.data.meta.page < output.data.meta.totalPages }}",
    "{{ (iter.page | int) + 1 }}",
    "{{ iter.has_more | string | lower == 'true' }}",
    "{{ outcome.result.data.paging.page | default(iter.page) }}",
    "{{ done('fetch') and ok('score') }}",
    "{{ all_done(['a', 'b']) or any_done(['c']) }}",
    "{{ {'name': user.name, 'score': this.profile_score or 0.0} }}",
    "{{ {'a': {'b': ctx.c}} }}",
    "{{ {'a': {'b': ctx.c}}}}",
    "{{ a.b is defined and a.b.c }}",
    "{{ a.b if a.b is defined else c }}",
    "{{ a.b.c if a.b else 'x' }}",
    "{{ not x is defined or x.y }}",
    "{{ x is undefined or x.y }}",
    "{{ a.items() }}",
    "{{ a.get('k', b.c).d }}",
    '{{ steps["a-b"].x[0].y }}',
    "{{ rows[iter.index].id }}",
    "{{ rows | map(attribute='x') | join(', ') }}",
    "{{ rows | selectattr('ok', 'equalto', ctx.want) | list }}",
    "{{ -x ** 2 % 3 // y ~ 'z' }}",
    "{{ x is divisibleby 3 }}",
    "{{ x is not none and x is not sameas y }}",
    "{{ (a or b) | default('c') }}",
    "{{ a | default(b) | default(c) }}",
    "{{ now() }} {{ range(3) }} {{ dict(a=x) }}",
    "{{ 'it' ~ \"s\" 'two' }}",
    "{{ x, y }}",
    "{{ () }} {{ (1,) }} {{ [] }} {{ {} }}",
    "{{ a.b.get(d.e) }}",
    "{{ f(x)(y).z }}",
    "{{ x in y and x not in z }}",
    "{{ 1.5e3 + 1_000 }}",
    "{{ true and none is none }}",
    "{{ a and a.b and a.b.c }}",
    "{{ rows[1:3] }}",
    "{{ rows[:n].x }}",
    "{{ rows[-1].id }}",
    "{{ rows['a'].b['c d'].e }}",
    "{{ rows[1 + x].id }}",
    "{{ 'a\\'b' }}{{ x }}",
    '{{ x | replace("\'", "\'\'") }}',
    "{{ 'true' if x.y else 'false' }}",
    "{{ x }} {{ y.z }} {{ now }}",
    "{{ x-y }}",
]
QUICK = [
    "{{ workload.url }}",
    "{{workload.url}}/a/{{ iter.page }}",
    "{{- ctx.a -}} text",
    "{{ output.status == 'error' and output.http.status in [429, 500] }}",
    "{{ iter.has_more | string | lower == 'true' }}",
    "{{ a | default('b') }}",
    "{{ not ctx.a or ctx.b + 1 > 2 }}",
    "{{ x }} {{ y.z }} {{ now }}",
]
HARD = [
    "{{ a.0.b }}",
    "{% for x in rows %}{{ x.id }}{{ y }}{% endfor %}",
    "{{ any_done([x]) }}",
    "{{ f(*args) }}",
    "{# gone #}{{ x }}",
    "{% if a.b is defined %}{{ a.b }}{% else %}{{ c }}{% endif %}",
]
WRONG = [
    "{{ a b }}",
    "{{ x",
    "{{ }}",
    "{{ (x }}",
    "{% for %}",
    "{{ x. }}",
    "{{ 1x }}",
    "{{ $x }}",
    "a }} {{ b }} {{",
]


def same(text: str) -> None:
    fast, slow = analyze_template.__wrapped__(text), templates._analyze_with_jinja(text)
    assert sorted(fast.reads) == sorted(slow.reads), text
    assert sorted(fast.calls, key=lambda call: call.offset) == sorted(slow.calls, key=lambda call: call.offset), text
    assert fast.problem == slow.problem, text


@pytest.mark.parametrize("text", SIMPLE)
def test_plain_expressions_are_analyzed_as_jinja_parses_them(text):
    assert analyze_template(text).problem is None
    same(text)


@pytest.mark.parametrize("text", HARD + WRONG)
def test_everything_else_is_left_to_jinja(text):
    assert templates._analyze_quickly(text, text.count("{{")) is None or "{%" in text or "{#" in text
    same(text)


@pytest.mark.parametrize("text", QUICK)
def test_the_commonest_forms_need_no_parser(text):
    assert templates._analyze_quickly(text, text.count("{{")) is not None
    same(text)


def test_an_invalid_template_has_a_message_and_a_position():
    for text, what in (("{{ x | nope }} {{ y.z }}", "filter"), ("{{ x is nope }} {{ y.z }}", "test")):
        expected = templates.Problem(f'there is no {what} "nope"', text.index("nope"), what, "nope")
        assert analyze_template(text).problem == expected
        assert [read.path for read in analyze_template(text).reads] == [("x",), ("y", "z")]
    problem = analyze_template("a\nb {{ x y }}").problem
    assert problem is not None and problem.offset == 9


KEYS = (
    "a b.c ctx.x 'text' 1 2.5 true none ( ) [ ] { } , : | . + - * ~ == in not and or if else is defined default int "
    "(1) ['k'] f( a=1 }} {{"
)
words = st.sampled_from(KEYS.split())


@settings(max_examples=400, deadline=None, derandomize=True)
@given(st.lists(words, max_size=12))
def test_random_expressions_give_the_same_result(parts):
    text = "{{ " + " ".join(parts) + " }}"
    fast = analyze_template.__wrapped__(text)
    error = syntax_error(text)
    assert (fast.problem is None) == (error is None), text
    if error is None:
        assert {read.path for read in fast.reads} == {use.path for use in free_names(text)}, text
        assert len(fast.calls) == len(calls(text)), text
