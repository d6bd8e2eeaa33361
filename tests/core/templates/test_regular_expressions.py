"""Regular expressions: the same matches as Python's, at a bounded cost."""

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
        return regex._parsed(pattern, False).min_width > 0
    except TemplateError:
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
        st.builds("(?x: {} # comment\n)".format, inner),
    )


PATTERNS = st.builds(
    "{}{}".format,
    st.recursive(st.builds("{}{}".format, ATOMS, QUANTIFIERS), compound, max_leaves=6),
    st.sampled_from(["", "", "$", r"\Z"]),
)
TEXTS = st.text(
    "aabbxAB1 \n.cäÖéé̂_٣", min_size=1, max_size=12
)  # `\B` in an empty text differs among versions of Python


def parsed(pattern):
    """The pattern for both engines; not those for which they differ on purpose."""
    try:
        re.compile(pattern)
        ours = regex._parsed(pattern, False)
    except (re.error, TemplateError):
        assume(False)
    return ours


def python_matches(compiled, text):
    """Matches of `re`; after an empty one the search continues with the next character."""
    at = 0
    while at <= len(text) and (found := compiled.search(text, at)) is not None:
        yield found
        at = found.end() + (found.start() == found.end())


@settings(max_examples=500, deadline=None, derandomize=True)
@given(PATTERNS, TEXTS)
def test_re2_finds_what_python_finds(pattern, text):
    ours = parsed(pattern)
    program, data = regex._program(EvaluationBudget(), ours, text)
    found = [regex.Match(text, spans) for spans in program.find_all(data)]
    expected = list(python_matches(re.compile(pattern), text))
    assert [match.spans[0] for match in found] == [match.span() for match in expected]
    assert [tuple(match.groups()) for match in found] == [match.groups() for match in expected]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(PATTERNS, TEXTS)
def test_both_engines_find_the_same(pattern, text):
    ours = parsed(pattern)
    for anchored in (False, True):
        found = regex._first(EvaluationBudget(), ours, text, anchored=anchored)
        expected = re.match(pattern, text) if anchored else re.search(pattern, text)
        assert (found and found.spans[0]) == (expected and expected.span())
    assert [match.spans[0] for match in regex._matches(EvaluationBudget(), ours, text)] == [
        match.span() for match in python_matches(re.compile(pattern), text)
    ]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(PATTERNS, st.text("abx1ä ", max_size=10), st.sampled_from(["", "-", r"<\g<0>>", r"\\", r"\n"]))
def test_replacing_is_the_same_as_pythons(pattern, text, replacement):
    assume(parsed(pattern).min_width)
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
        ("Größe=42 Straße=Änderung naïve 数字;\n", r"\b\w+=\w+\b"),
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
        before = budget.operations
        assert regex.search(budget, "(a+)+b", "a" * length) is None
        return before - budget.operations

    assert charge(1_000_000) == pytest.approx(10 * charge(100_000), rel=0.01)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("([ab]{0,30}){30}c", "a" * 900_000),  # large, so that RE2's slowest engine runs
        ("[ab]*c|a", "a" * 200_000),  # each of many matches reads the text to its end
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
        (r"\b\w+\b", "Änderung für Größe, naïve", ["Änderung", "für", "Größe", "naïve"]),
        (r"\d+", "٣٤ 12", ["٣٤", "12"]),
        (r"\s+", "a\u00a0\u2003b\x1cc", ["\u00a0\u2003", "\x1c"]),
        (r"(?i)straße+", "STRAßE Straßee", ["STRAßE", "Straßee"]),
        (r"[^\W\d_]+", "a_1é\ud800z", ["a", "é", "z"]),
        (r"\w+$", "one\ntwo\n", ["two"]),
        (r"\s*$", "a \n", [" \n", ""]),
    ],
)
def test_unicode_and_line_ends_mean_what_they_mean_to_python(pattern, text, expected):
    program, data = regex._program(EvaluationBudget(), regex._parsed(pattern, False), text)
    assert [regex.Match(text, spans).group() for spans in program.find_all(data)] == expected
    assert regex.findall(EvaluationBudget(), pattern, text) == expected == re.findall(pattern, text)


def test_a_word_boundary_with_very_many_distinguished_letters_is_refused():
    pattern = r"\b(?:" + "|".join(chr(0x4E00 + number) for number in range(80)) + r")+\b"
    text = "".join(chr(0x4E00 + number) for number in range(90)) * 30_000
    with pytest.raises(TemplateError, match="distinguishes too many characters"):
        regex.search(EvaluationBudget(), pattern, text[:50_000])


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
        ("a{1001}", "may count to 1,000"),
        ("(", "invalid regular expression: missing \\)"),
        (5, "must be text"),
        ("a" * 1001, "1,001 characters"),
    ],
)
def test_what_is_not_supported_is_an_error(pattern, message):
    with pytest.raises(TemplateError, match=message):
        regex.search(EvaluationBudget(), pattern, "abc")
