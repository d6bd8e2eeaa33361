"""Values, text, undefined names, guards."""

import pytest

from noetl.core.templates.template import compile_value, evaluate, holds
from noetl.errors import TemplateError

NAMES = {
    "ctx": {"total": 3, "items": [1, 2], "name": "ann", "none": None, "deep": {"a": {"b": [10, {"c": 1}]}}},
    "workload": {"items": ["x"], "keys": "own", "flag": False},
}


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("{{ ctx.total }}", 3),
        ("  {{ ctx.total }}\n", 3),
        ("{{ ctx.total }}{{ ctx.total }}", "33"),
        ("n={{ ctx.total }}", "n=3"),
        ("{{ ctx.items }}", [1, 2]),
        ("{{ workload.keys }}", "own"),
        ("{{ workload.items[0] }}", "x"),
        ("{{ ctx.deep.a.b[1].c }}", 1),
        ("{{ ctx['total'] + 1 }}", 4),
        ("{{ (1, 2) }}", [1, 2]),
        ("{{ '5' }}", "5"),
        ("{{ none }}", None),
        ("[{{ none }}{{ true }}]", "[NoneTrue]"),
        ("{{ ctx.total > 2 and ctx.name == 'ann' }}", True),
        ("{% for i in ctx.items %}{{ i }},{% endfor %}", "1,2,"),
        ("{% if ctx.total > 2 %}yes{% else %}no{% endif %}", "yes"),
        ("{% set x = ctx.total * 2 %}{{ x }}", "6"),
        ("a{# not me #}b", "ab"),
        ("line\n", "line\n"),
        ("{{ ctx.total }}\nend\n", "3\nend\n"),
        ("echo ${#array[@]}", "echo ${#array[@]}"),
        ("{{ 'x' if workload.flag }}", ""),
        ({"a": ["{{ ctx.total }}", {"{{ k }}": "t{{ ctx.total }}"}]}, {"a": [3, {"{{ k }}": "t3"}]}),
        (5, 5),
    ],
)
def test_a_template_gives_a_value_with_its_type(template, value):
    answer = evaluate(template, NAMES)
    assert answer == value
    assert type(answer) is type(value)


def test_a_value_without_templates_is_static_and_given_back_as_it_is():
    value = {"a": [1, "b"], "c": "${x} } {"}
    compiled = compile_value(value)
    assert compiled.static
    assert compiled.evaluate({}) is value


def test_a_missing_field_is_named_with_what_exists_there():
    with pytest.raises(TemplateError) as caught:
        evaluate("{{ ctx.totl }}", NAMES)
    assert str(caught.value).startswith('"ctx.totl" is not defined here; ctx has: total, items, name')
    assert 'did you mean "ctx.total"?' in str(caught.value)
    assert caught.value.text == "{{ ctx.totl }}"


def test_an_error_has_the_path_inside_the_value():
    with pytest.raises(TemplateError) as caught:
        evaluate({"url": "x", "headers": ["{{ nope }}"]}, NAMES)
    assert caught.value.path == "headers/0"


@pytest.mark.parametrize(
    ("guard", "answer"),
    [
        ("", False),
        ("false", False),
        (" FALSE ", False),
        ("no", True),
        ("{{ ctx.total == 3 }}", True),
        ("{{ ctx.none }}", False),
        ("{{ 'False' }}", False),
        ("{{ ctx.items | length == 0 }}", False),
        (True, True),
        (None, False),
        (0, False),
    ],
)
def test_text_that_is_empty_or_false_is_false_as_a_guard(guard, answer):
    assert holds(guard, NAMES) is answer


def test_the_bound_on_text_can_be_set():
    compiled = compile_value({"a": "{{ 'x' * n }}", "b": "{% for i in range(n) %}y{% endfor %}"})
    assert compiled.evaluate({"n": 9}, max_text=10) == {"a": "x" * 9, "b": "y" * 9}
    with pytest.raises(TemplateError) as caught:
        compiled.evaluate({"n": 11}, max_text=10)
    assert (caught.value.kind, caught.value.path) == ("limit", "a")


def test_names_may_be_any_lazy_mapping():
    class Lazy(dict):
        def __missing__(self, key):
            requested.append(key)
            raise KeyError(key)

    requested = []
    scope = Lazy(a=1)
    assert evaluate("{{ a if a else b }}", scope) == 1
    assert requested == []
    assert evaluate("{{ b | default(2) }}{% if a %}{{ a }}{% endif %}", scope) == "21"


def test_an_internal_exception_is_not_converted():
    class Refusing(dict):
        def __missing__(self, key):
            raise TemplateError(f"{key} must not be read here")

    with pytest.raises(TemplateError, match="keychain must not be read here"):
        evaluate("{{ keychain.token | default('') }}", Refusing())


@pytest.mark.parametrize(
    "text",
    [
        r"{{ '\ud800' }}",
        r"{% set x = 'a\udfff' %}{{ x }}",
        "{{ '%c' % 55296 }}",
        "{{ '%c' | format(55296) }}",
        "{{ '{:c}'.format(55296) }}",
        r"""{{ '["\\ud800"]' | fromjson }}""",
    ],
)
def test_text_that_is_not_valid_unicode_is_an_error(text):
    with pytest.raises(TemplateError, match="surrogate"):
        evaluate(text, {})


def test_valid_escapes_are_text():
    assert evaluate(r"""{{ '["\\ud83d\\ude00"]' | fromjson }}""", {}) == ["\U0001f600"]
    assert evaluate(r"{{ '\u00e9' ~ '%c' % 233 }}", {}) == "éé"
    assert evaluate("{{ ['nan' | float, 'inf' | float(5), '1e999' | float] }}", {}) == [0.0, 5, 0.0]
    with pytest.raises(TemplateError, match="the number is too large"):
        evaluate("{{ 1e999 }}", {})
    with pytest.raises(TemplateError, match="JSON has no NaN"):
        evaluate("{{ '[NaN]' | fromjson }}", {})
