"""Whatever a template is given, it answers with plain data or with an error in words."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from noetl.core.model.outcome import ok
from noetl.core.templates.filters import FILTERS
from noetl.core.templates.functions import _LIST, _MAPPING, _TEXT, FUNCTIONS
from noetl.core.templates.predicates import TESTS
from noetl.core.templates.template import compile_value, evaluate
from noetl.core.templates.views import Missing, OutputView, ResultView
from noetl.errors import TemplateError

NAMES = {
    "n": None,
    "yes": True,
    "i": -3,
    "f": 2.5,
    "s": "2026-03-01",
    "t": "a,b {0} %s",
    "l": [1, "a", None, [2], {"k": 1}],
    "nums": [3, 1, 2],
    "m": {"k": 1, "items": [1], "": {}},
    "rows": [{"id": 1}, {"id": None}, {}],
    "later": Missing("later", "it has not run"),
    "output": OutputView(ok({"rows": [1]})),
    "fetch": ResultView(ok([1, 2])),
}
VALUES = st.sampled_from(
    [*NAMES, "nope", "nope.x", "1", "-1", "0", "1e3", "'id'", "'k'", "''", "[]", "{}", "(1,2)", "range(2)"]
)
NAMED = st.sampled_from(
    ["attribute='id'", "default=1", "reverse=true", "indent=2", "case_sensitive=true", "start=[]", "by='value'", "x=1"]
)
ARGUMENTS = st.builds(
    lambda plain, named: ", ".join([*plain, *named]), st.lists(VALUES, max_size=3), st.lists(NAMED, max_size=1)
)
WORDS = sorted({word for word in TESTS if word.isidentifier()})
METHODS = sorted({*_TEXT, *_MAPPING, *_LIST, "nope"})
EXPRESSIONS = st.one_of(
    st.builds("{} | {}({})".format, VALUES, st.sampled_from(sorted(FILTERS)), ARGUMENTS),
    st.builds("{} | map('{}', {})".format, VALUES, st.sampled_from(sorted(FILTERS)), VALUES),
    st.builds("{} | select('{}', {})".format, VALUES, st.sampled_from(sorted(TESTS)), VALUES),
    st.builds("{} is {}({})".format, VALUES, st.sampled_from(WORDS), VALUES),
    st.builds("{} is {}".format, VALUES, st.sampled_from(WORDS)),
    st.builds("({}).{}({})".format, VALUES, st.sampled_from(METHODS), ARGUMENTS),
    st.builds("{}({})".format, st.sampled_from(sorted(FUNCTIONS)), ARGUMENTS),
)


def reported(text):
    """The value, or what the error says."""
    try:
        return evaluate(text, NAMES), ""
    except TemplateError as problem:
        return None, str(problem)


@settings(max_examples=500, deadline=None, derandomize=True)
@given(EXPRESSIONS)
def test_an_expression_returns_plain_data_or_a_template_error(expression):
    for text in ("{{ " + expression + " }}", "{% if true %}{{ " + expression + " }}{% endif %}"):
        answer, said = reported(text)
        json.dumps(answer)
        for word in ("Traceback", "object has no attribute", "NoneType", "lambda", "noetl.", "<function"):
            assert word not in said


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.text("{}%#-ab.|'\"()[] \n~in", max_size=25))
def test_any_text_compiles_or_raises_a_template_error(text):
    answer, said = reported(text)
    assert answer is not None or said or "none" in text


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.text(max_size=30))
def test_text_outside_of_templates_is_kept(text):
    if "{" not in text:
        assert compile_value(text).static
        given_text = text.replace("\r\n", "\n").replace("\r", "\n")
        if given_text.strip():
            assert evaluate(text + "{{ '' }}", {}) == given_text
