"""Regular expressions: the matches of Python's `re` with few exceptions, at a bounded cost."""

import re
import time

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from noetl.core.templates.budget import EvaluationBudget
from noetl.core.templates.filters import regular_expressions as regex
from noetl.errors import TemplateError

ATOMS = st.sampled_from(
    [
        *[
            "a",
            "b",
            ".",
            "[ab]",
            "[^a]",
            r"\w",
            r"\W",
            r"\d",
            r"\s",
            r"\S",
            r"\b",
            r"\B",
            "^",
            "x",
            r"\.",
            "[a-c1-3]",
            "ä",
        ],
        *[r"[^\W_]", r"[\W\d]", r"\x61", r"\n", "[äö]", r"[\s\S]", r"\u00e4", "[]a]", "É"],
    ]
)
QUANTIFIERS = st.sampled_from(["", "", "*", "+", "?", "{1,2}", "{2}", "{,2}", "*?", "+?", "??", "{2,}"])


def never_empty(pattern):
    """Whether a repetition of it is the same to both engines."""
    try:
        return re._parser.parse(pattern).getwidth()[0] > 0
    except re.error:
        return False


def compound(inner):
    solid = inner.filter(never_empty)
    return st.one_of(
        st.builds("{}{}".format, inner, inner),
        st.builds("({})".format, inner),
        st.builds("(?:{}|{})".format, inner, inner),
        st.builds("({}){}".format, solid, QUANTIFIERS),
        st.builds("(?:{}|{}){}".format, solid, solid, QUANTIFIERS),
        st.builds("(?P<g>{}|{})".format, inner, inner),
        st.builds("(?i:{})".format, inner),
        st.builds("(?sm:{})".format, inner),
        st.builds("{}(?#comment)".format, inner),
    )


PATTERNS = st.builds(
    "{}{}".format,
    st.recursive(st.builds("{}{}".format, ATOMS, QUANTIFIERS), compound, max_leaves=6),
    st.sampled_from(["", "", "$", r"\Z"]),
)
# `\B` in an empty text differs among versions of Python.
TEXTS = st.text("aabbxAB1 \n.cäÖéé̂_٣", min_size=1, max_size=12)


def comparable(pattern, text):
    """Whether both engines mean the same; the differences are documented in docs/reference/templates.md."""
    try:
        re.compile(pattern)
        regex._program(EvaluationBudget(), pattern, "", False)
    except (re.error, TemplateError):
        return False
    word_boundaries = not text.isascii() and (r"\b" in pattern.lower())
    return not word_boundaries and not (pattern.endswith("$") and text.endswith("\n"))


def python_matches(pattern, text):
    """Matches of `re`; after an empty one the search continues with the next character."""
    at, compiled = 0, re.compile(pattern)
    while at <= len(text) and (found := compiled.search(text, at)) is not None:
        yield found
        at = found.end() + (found.start() == found.end())


@settings(max_examples=500, deadline=None, derandomize=True)
@given(PATTERNS, TEXTS)
def test_matches_are_those_of_python(pattern, text):
    assume(comparable(pattern, text))
    program, data = regex._program(EvaluationBudget(), pattern, text, False)
    found = [(each.group(), each.groups()) for each in program.find_all(EvaluationBudget(), data)]
    assert found == [(each.group(), list(each.groups())) for each in python_matches(pattern, text)]
    for ours, pythons in ((regex.search, re.search), (regex.match, re.match)):
        one, expected = ours(EvaluationBudget(), pattern, text), pythons(pattern, text)
        assert (one and one.group()) == (expected and expected.group())


@settings(max_examples=200, deadline=None, derandomize=True)
@given(PATTERNS, st.text("abx1ä ", max_size=10), st.sampled_from(["", "-", r"<\g<0>>", r"\\", r"\n"]))
def test_replacing_is_the_same_as_pythons(pattern, text, replacement):
    assume(never_empty(pattern) and comparable(pattern, text))
    assert regex.replace(EvaluationBudget(), pattern, replacement, text) == re.sub(pattern, replacement, text)


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
        (r"(x+x+)+y", "ä" * 100_000),
        ("(a*)*b", "a" * 100_000),
    ],
)
def test_no_pattern_takes_exponential_time(pattern, text):
    began = time.process_time()
    regex.search(EvaluationBudget(), pattern, text)
    assert time.process_time() - began < 1


@pytest.mark.parametrize("length", [100_000, 1_000_000])
@pytest.mark.parametrize(
    ("line", "pattern"),
    [
        ("user=ann id=42 mail=ann@example.com;\n", r"[a-z]+=[0-9]+"),
        ("user=ann id=42 mail=ann@example.com;\n", r"\w+@(\w+)\.\w+"),
        ("user=ann id=42 mail=ann@example.com;\n", r"(?m)^user=(\w+).*$"),
        ("Größe=42 Straße=Änderung naïve 数字;\n", r"\w+=\w+;?"),
    ],
)
def test_long_texts_are_within_the_limits(length, line, pattern):
    text = (line * (length // len(line) + 1))[:length]
    budget = EvaluationBudget()
    assert regex.findall(budget, pattern, text) == re.findall(pattern, text)
    assert regex.replace(EvaluationBudget(), pattern, "-", text) == re.sub(pattern, "-", text)
    assert budget.operations > 0


def test_the_charge_is_in_proportion_to_the_text():
    def charge(length):
        budget = EvaluationBudget()
        regex.search(budget, "(a+)+b", "")  # the first use is charged for the compilation
        before = budget.operations
        assert regex.search(budget, "(a+)+b", "a" * length) is None
        return before - budget.operations

    assert charge(1_000_000) == pytest.approx(10 * charge(100_000), rel=0.01)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("([ab]{0,30}){30}c", "a" * 900_000),  # large, so that RE2's slowest engine runs
        ("[ab]*c|a", "a" * 200_000),  # each of many matches reads the text to its end
        (r"(\w{0,4}){60}x", "ä" * 400_000),
    ],
)
def test_expensive_searches_exceed_the_limit(pattern, text):
    began = time.process_time()
    with pytest.raises(TemplateError, match="more than 500,000 operations") as caught:
        regex.findall(EvaluationBudget(), pattern, text)
    assert caught.value.kind == "limit"
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        (r"\w+", "Änderung für Größe, naïve", ["Änderung", "für", "Größe", "naïve"]),
        (r"[\w.-]+@[\w-]+", "jörg.ä@müller-süß – x@y", ["jörg.ä@müller-süß", "x@y"]),
        (r"[\s\S]", "ä\n\u0378", ["ä", "\n", "\u0378"]),
        (r"[^\W\d_]+|\D", "a_1é", ["a", "_", "é"]),
        (r"[\b\u00e4]\u2013", "ä–\b–", ["ä–", "\b–"]),
        (r"\d+", "٣٤ 12", ["٣٤", "12"]),
        (r"\s+", "a\u00a0\u2003b\x1cc", ["\u00a0\u2003", "\x1c"]),
        (r"(?i)straße+", "STRAßE Straßee", ["STRAßE", "Straßee"]),
        (r"[^\W\d_]+", "a_1é\ud800z", ["a", "é", "z"]),
        (r"\w+$", "one\ntwo\n", ["two"]),
        (r"^\w+$", "ok\n", ["ok"]),
        (r"[^,]*$", "1,2\n", ["2\n", ""]),
        (r"\d+,?$", "1,2\n", ["2"]),
        (r"(?m)\w$", "a\nb\n", ["a", "b"]),
    ],
)
def test_unicode_and_line_ends_mean_what_they_mean_to_python(pattern, text, expected):
    assert regex.findall(EvaluationBudget(), pattern, text) == expected == re.findall(pattern, text)


def test_a_trailing_newline_is_trimmed_like_in_python():
    assert regex.replace(EvaluationBudget(), r"\s+$", "", "abc  \n") == "abc"


def test_word_boundaries_are_those_of_ascii_words():
    assert regex.findall(EvaluationBudget(), r"\b\w+\b", "für Größe élan") == ["für", "Größe", "lan"]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(?=a)", "look-ahead and look-behind are not supported"),
        ("(?<!a)b", "look-ahead and look-behind are not supported"),
        (r"(a)\1", "back references are not supported"),
        ("(?P<g>a)(?P=g)", "back references are not supported"),
        ("(?P<g>a)?(?(g)b|c)", "back references are not supported"),
        ("(?>a)b", "atomic groups are not supported"),
        ("a*+b", "possessive repetitions are not supported"),
        ("a{1001}", "repetitions of a regular expression are too large"),
        ("(?x)a b", r"\(\?x is not supported"),
        (r"\C", "invalid escape sequence"),
        ("(", "invalid regular expression: missing \\)"),
        (5, "must be text"),
        ("a" * 1001, "1,001 characters"),
    ],
)
def test_what_is_not_supported_is_an_error(pattern, message):
    with pytest.raises(TemplateError, match=message):
        regex.search(EvaluationBudget(), pattern, "abc")
