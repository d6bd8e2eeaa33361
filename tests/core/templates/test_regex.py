"""Regular expressions: the same matches as Python's, at a bounded cost."""

import re
import time

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from noetl.core.templates.budget import EvaluationBudget
from noetl.core.templates.filters import regular_expressions as regex
from noetl.errors import TemplateError

ATOMS = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\w", r"\d", r"\s", r"\b", "^", "$", "x", r"\.", "[a-c1-3]"])
QUANTIFIERS = st.sampled_from(["", "", "*", "+", "?", "{1,2}", "{2}", "*?", "+?", "??", "{2,}"])


def compound(inner):
    return st.one_of(
        st.builds("{}{}".format, inner, inner),
        st.builds("({}){}".format, inner, QUANTIFIERS),
        st.builds("(?:{}|{}){}".format, inner, inner, QUANTIFIERS),
        st.builds("(?P<g>{}|{})".format, inner, inner),
        st.builds("(?i:{})".format, inner),
    )


PATTERNS = st.recursive(st.builds("{}{}".format, ATOMS, QUANTIFIERS), compound, max_leaves=6)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(PATTERNS, st.text("aabbxAB1 \n.c", max_size=12))
def test_the_machine_finds_what_python_finds(pattern, text):
    try:
        expected = re.compile(pattern)
        program = regex._program(pattern, False)
    except (re.error, TemplateError):
        assume(False)
    found = list(regex._simulate(EvaluationBudget(), program, text, anchored=False))
    assert [match.spans[0] for match in found] == [match.span() for match in expected.finditer(text)]
    assert [tuple(match.groups()) for match in found] == [match.groups() for match in expected.finditer(text)]
    first = next(regex._simulate(EvaluationBudget(), program, text, anchored=True), None)
    anchored = expected.match(text)
    assert (first and first.spans[0]) == (anchored and anchored.span())


@settings(max_examples=100, deadline=None, derandomize=True)
@given(PATTERNS, st.text("abx1 ", max_size=10), st.sampled_from(["", "-", r"<\g<0>>", r"\\", r"\n"]))
def test_replacing_is_the_same_as_pythons(pattern, text, replacement):
    try:
        expected = re.sub(pattern, replacement, text)
        regex._program(pattern, False)
    except (re.error, TemplateError):
        assume(False)
    assert regex.replace(EvaluationBudget(), pattern, replacement, text) == expected


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("(a+)+$", "a" * 5000 + "b"),
        ("(a|a)*$", "a" * 5000 + "b"),
        ("(a|aa)+$", "a" * 5000 + "b"),
        ("a?" * 40 + "a" * 40, "a" * 40),
        (r"(\w+\s?)*$", "word " * 800 + "!"),
        (r"^(([a-z])+.)+[A-Z]([a-z])+$", "a" * 3000),
        (".*.*.*x", "a" * 5000),
        (r"(x+x+)+y", "x" * 3000),
    ],
)
def test_no_pattern_runs_away(pattern, text):
    began = time.process_time()
    regex.search(EvaluationBudget(), pattern, text)
    assert time.process_time() - began < 3


def test_a_search_over_much_text_is_counted():
    with pytest.raises(TemplateError) as caught:
        regex.findall(EvaluationBudget(), "(a+)+b", "a" * 900_000)
    assert caught.value.kind == "limit"


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(?=a)", "look-ahead"),
        ("(?<!a)b", "look-behind"),
        (r"(a)\1", "back references"),
        ("(a*)*", "may be empty"),
        ("(", "cannot be read"),
        (5, "is text"),
    ],
)
def test_what_is_not_supported_says_so(pattern, message):
    with pytest.raises(TemplateError, match=message):
        regex.search(EvaluationBudget(), pattern, "abc")
