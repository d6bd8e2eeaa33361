"""Bound texts: the author's words and the data stay apart, whatever the data is."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noetl.core.templates.binding import Bound, bound_parts, bound_text, compile_bound, whole_value
from noetl.core.templates.template import compile_value
from noetl.errors import TemplateError


def parts(text, **names):
    return bound_parts(compile_bound(text).evaluate(names))


def test_values_of_expressions_are_separated_from_the_authors_text():
    assert parts("echo {{ a.b }} > {{ f }}.txt", a={"b": "x; rm"}, f=7) == [
        "echo ", Bound("x; rm"), " > ", Bound(7), ".txt",
    ]  # fmt: skip


def test_a_text_that_is_one_expression_is_its_value():
    assert whole_value(compile_bound("{{ cmd }}").evaluate({"cmd": ["a", 1]})) == Bound(["a", 1])
    assert whole_value(compile_bound("  {{ cmd }}\n").evaluate({"cmd": "x y"})) == Bound("x y")
    assert whole_value(compile_bound("echo {{ cmd }}").evaluate({"cmd": "x y"})) is None
    assert whole_value("echo a") is None


def test_text_without_templates_is_static():
    assert compile_bound("echo a").static
    assert bound_parts("echo a") == ["echo a"]
    assert bound_parts("") == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{% if c %}a {{ x }}{% else %}b{% endif %}", ["a ", Bound("X")]),
        ("{% for n in [1, 2] %}{{ n }},{% endfor %}", [Bound(1), ",", Bound(2), ","]),
        ("a {{- x -}} b", ["a", Bound("X"), "b"]),
        ("{{ 'a }} b' }} {{ {'k': x}.k }}", [Bound("a }} b"), " ", Bound("X")]),
        ("{% raw %}{{ no }}{% endraw %} {{ x | lower }}", ["{{ no }} ", Bound("x")]),
        ("{{ x if c else 'n' }}{# {{ no }} #}!", [Bound("X"), "!"]),
        ("{% set y %}-{{ x }}-{% endset %}{{ y }}.", [Bound("-X-"), "."]),
        ("{{ x, 1 }} t", [Bound(["X", 1]), " t"]),
        ("a {% print x %} b", ["a ", Bound("X"), " b"]),
        ("a {%- print (x) -%} b", ["a", Bound("X"), "b"]),
        ("{% print x %}", [Bound("X")]),
        ("a {%+ print x +%} b", ["a ", Bound("X"), " b"]),
        ("{% set y %}-{{ x }}-{% endset %}{{ y | lower }}.", [Bound("-x-"), "."]),
        ("{% set y | lower %}{{ x }}{% endset %}{{ y }}.", [Bound("x"), "."]),
        ("{% set y | replace('X', x) %}{% print x %}{% endset %}{{ y | length }}.", [Bound(1), "."]),
        ("{% macro m(a, b='=') %}{{ a }}{{ b }}{% endmacro %}{{ m(x) | lower }}{{ x }}", [Bound("x="), Bound("X")]),
        ("{% set y = x ~ 'a' %}{{ y }} b", [Bound("Xa"), " b"]),
    ],
)
def test_the_whole_template_language_works(text, expected):
    assert parts(text, x="X", c=True) == expected


@pytest.mark.parametrize(
    "text",
    [
        "{% filter replace('N', x) %}echo N{% endfilter %}",
        "{%- filter format(x) -%}echo %s{% endfilter %}",
        "{% call '{0}'.format(x) %}{% endcall %}",
        "{% if c %}{% filter upper %}{{ x }}{% endfilter %}{% endif %}",
        "{% for n in [[x]] recursive %}{{ n if n is string else loop(n) }}{% endfor %}",
    ],
)
def test_blocks_that_write_values_as_code_are_refused(text):
    with pytest.raises(TemplateError, match="writes values as code"):
        parts(text, x="X", c=True)


def test_errors_show_the_text_as_it_was_written():
    with pytest.raises(TemplateError) as problem:
        parts("echo {{ nothing }} {{ x + {} }}", x=1)
    assert "tojson" not in str(problem.value) + problem.value.text
    assert '"nothing" is not defined' in str(problem.value)
    with pytest.raises(TemplateError) as problem:
        parts("echo {{ x + {} }} !", x=1)
    assert "tojson" not in str(problem.value) + problem.value.text


def test_names_are_those_of_the_text_as_it_was_written():
    text = "echo {{ a.b }} {% if c %}{{ d }}{% endif %}"
    assert compile_bound(text).names == compile_value(text).names


@given(value=st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x, max_size=3)))
@settings(max_examples=200, deadline=None)
def test_any_value_survives_the_round_trip(value):
    found = parts("a {{ x }} b", x=value)
    assert found == ["a ", Bound(value), " b"]


def test_data_cannot_imitate_a_mark():
    assert parts("a {{ x }}", x="\x01NQ==\x02; rm") == ["a ", Bound("\x01NQ==\x02; rm")]


def test_a_bound_text_can_be_read_as_plain_text():
    text = "a {{ x }} {{ y }}"
    names = {"x": [1, "b"], "y": None}
    assert bound_text(compile_bound(text).evaluate(names)) == compile_value(text).evaluate(names)
