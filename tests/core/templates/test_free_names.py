"""What a template reads and calls, with places."""

import pytest

from noetl.core.templates import free_names as reader
from noetl.core.templates.free_names import calls, dotted_names, free_names, syntax_error
from noetl.core.templates.template import compile_value


def paths(text):
    return [".".join(use.path) for use in free_names(text)]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("no template", []),
        ("{{ a }}", ["a"]),
        ("{{ ctx.a['b'].c[0] }}", ["ctx.a.b.c.0"]),
        ("{{ ctx.a[key].c }}", ["key", "ctx.a"]),
        ("{{ steps['a-b'].status }}", ["steps.a-b.status"]),
        ("{{ ctx.name.upper() }}", ["ctx.name"]),
        ("{{ ctx.items.get(k, d.x) }}", ["ctx.items", "k", "d.x"]),
        ("{{ a | join(b) }} {{ c is divisibleby(d) }}", ["a", "b", "c", "d"]),
        ("{% for x in rows %}{{ x.id }}{{ loop.index }}{{ y }}{% endfor %}{{ x }}", ["rows", "y", "x"]),
        (
            "{% for k, v in m.items() if v > low %}{{ k }}{{ v }}{% else %}{{ none_left }}{% endfor %}",
            ["m", "low", "none_left"],
        ),
        ("{% set x = a.b %}{{ x.c }}", ["a.b"]),
        ("{% for i in r %}{% set x = i %}{% endfor %}{{ x }}", ["r", "x"]),
        ("{% if c %}{% set x = 1 %}{% endif %}{{ x }}", ["c"]),
        ("{% set x %}{{ q }}{% endset %}{{ x }}", ["q"]),
        ("{% set ns = namespace(n=a) %}{% set ns.n = b %}{{ ns.n }}", ["a", "b"]),
        ("{% with x = a %}{{ x }}{{ b }}{% endwith %}{{ x }}", ["a", "b", "x"]),
        ("{% macro m(p, q=d) %}{{ p }}{{ q }}{{ z }}{% endmacro %}{{ m(w) }}", ["d", "z", "w"]),
        ("{{ range(n) }}{{ now() }}{{ uuid() }}", ["n"]),
        ("{{ {'k': a, b: 1} }}{{ [c, (d,)] }}", ["a", "b", "c", "d"]),
        ("{{ a ~ b + c * -d }}{{ not e }}{{ f if g else h }}", ["a", "b", "c", "d", "e", "g", "f", "h"]),
        ("{# {{ a }} #}{% raw %}{{ b }}{% endraw %}{{ c }}", ["c"]),
        ("{{ broken", []),
    ],
)
def test_free_names_are_those_read_from_outside(text, names):
    assert paths(text) == names


def test_a_name_has_a_line_and_a_column():
    uses = free_names("first {{ a.b }}\n  {{ c +\r\n d }}")
    assert [(use.path[0], use.line, use.column) for use in uses] == [("a", 1, 10), ("c", 2, 6), ("d", 3, 2)]


@pytest.mark.parametrize(
    ("text", "guarded"),
    [
        ("{{ a.b }}", [False]),
        ("{{ a.b | default(1) }}", [True]),
        ("{{ a.b | d(c) }}", [True, False]),
        ("{{ a is defined }}", [True]),
        ("{{ a.b is not defined }}", [True]),
        ("{{ a.b if a is defined else 0 }}", [True, True]),
        ("{{ a.b if a.b is defined else a.c }}", [True, True, False]),
        ("{{ a is defined and a.b > 1 }}", [True, True]),
        ("{{ a is not defined or a.b }}", [True, True]),
        ("{{ a is undefined or a.b }}", [True, True]),
        ("{{ not (a is defined) or a.x }}", [True, True]),
        ("{% if a is defined %}{{ a.x }}{{ b }}{% endif %}", [True, True, False]),
        ("{{ (a.b | default(1)) + a.b }}", [True, False]),
        ("{{ a and a.b }}", [False, True]),
    ],
)
def test_a_default_or_a_test_guards_a_name(text, guarded):
    assert [use.guarded for use in free_names(text)] == guarded


def test_calls_come_with_their_constant_arguments():
    text = "{{ done('fetch') and all_done(['a', 'b']) or ok(step_name) }}\n{{ ctx.x.get('y') }}{{ now() }}"
    found = [(call.name, call.args, call.line, call.column) for call in calls(text)]
    assert found == [
        ("done", ("fetch",), 1, 4),
        ("all_done", (("a", "b"),), 1, 22),
        ("ok", (None,), 1, text.index("ok(") + 1),
        ("now", (), 2, 24),
    ]


@pytest.mark.parametrize(
    ("text", "message", "line", "column"),
    [
        ("{{ a b }}", "got 'b'", 1, 6),
        ("ok\n  {{ a | lenght }}", 'there is no filter "lenght"; did you mean "length"?', 2, 10),
        ("{{ a is definde }}", 'there is no test "definde"; did you mean "defined"?', 1, 9),
        ("{% if a %}x", "unexpected end of template", 1, 11),
        ("{{ a & b }}", "unexpected char '&'", 1, 6),
        ("x {% frob %}", "unknown tag 'frob'", 1, 6),
        ("{% include 'a' %}", "include %} is not part of this template language", 1, 4),
        (
            "a {% autoescape true %}{{ b }}{% endautoescape %}",
            "autoescape %} is not part of this template language",
            1,
            6,
        ),
        ("{{ 'a }}", "unexpected char", 1, 4),
        ("{{ a", "unexpected end of template", 1, 5),
        ("{{ }}", "expected an expression", 1, 4),
    ],
)
def test_a_syntax_error_has_a_position_and_a_message(text, message, line, column):
    found = syntax_error(text)
    assert found is not None
    assert message in found[0]
    assert found[1] == line
    assert abs(found[2] - column) <= 1, found


@pytest.mark.parametrize("text", ["plain", "{{ a }}", "{% for x in y %}{% endfor %}", "echo ${#arr[@]}", ""])
def test_a_good_template_has_no_syntax_error(text):
    assert syntax_error(text) is None


def test_the_names_of_a_value_are_those_of_its_templates():
    compiled = compile_value({"a": ["{{ ctx.x }}", "{{ ctx.x + y }}"], "b": "t{{ z.q }}", "c": 1})
    assert compiled.names == ("ctx.x", "y", "z.q")
    assert dotted_names("{{ ctx.x }}{{ ctx.x }}") == ("ctx.x",)


def test_every_filter_test_and_function_has_a_line():
    for table in (reader.filters(), reader.tests(), reader.functions()):
        assert table
        for name, doc in table.items():
            assert doc, name
            assert "\n" not in doc
