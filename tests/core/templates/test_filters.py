"""Every filter at work, and what it says when it cannot."""

import pytest

from noetl.core.templates.filters import FILTERS
from noetl.core.templates.status_helpers import STATUS_FUNCTIONS, status_functions
from noetl.core.templates.template import evaluate
from noetl.errors import TemplateError

ROWS = [{"id": 2, "n": "b", "city": "Oslo"}, {"id": 1, "n": "a", "city": "oslo"}, {"id": 3, "n": "C", "city": "Rome"}]
NAMES = {"rows": ROWS, "m": {"b": 1, "a": {"x": 1}}, "text": "A b'c <d>", "none_": None}

WORKING = {
    "abs": [("-3 | abs", 3)],
    "attr": [("m | attr('b')", 1)],
    "b64decode": [("'w7g=' | b64decode", "ø"), ("'w7g' | b64decode", "ø")],
    "b64encode": [("'ø' | b64encode", "w7g=")],
    "basename": [("'/a/b.csv' | basename", "b.csv"), ("'/a/b/' | basename", "b")],
    "batch": [("[1,2,3] | batch(2)", [[1, 2], [3]]), ("[1,2,3] | batch(2, 0)", [[1, 2], [3, 0]])],
    "bool": [("'No' | bool", False), ("'yes' | bool", True), ("0 | bool", False)],
    "capitalize": [("'aB' | capitalize", "Ab")],
    "center": [("'x' | center(3)", " x ")],
    "combine": [
        ("m | combine({'c': 2})", {"b": 1, "a": {"x": 1}, "c": 2}),
        ("m | combine({'a': {'y': 2}}, recursive=true)", {"b": 1, "a": {"x": 1, "y": 2}}),
    ],
    "count": [("rows | count", 3)],
    "d": [("nope | d(1)", 1)],
    "date": [("'2026-03-01T12:30:00Z' | date", "2026-03-01"), ("0 | date('%Y')", "1970")],
    "date_add": [
        ("'2026-03-01T00:00:00Z' | date_add('1d 2h')", "2026-03-02T02:00:00Z"),
        ("'2026-03-01' | date_add(days=-1)", "2026-02-28T00:00:00Z"),
        ("'2026-03-01T00:00:00+02:00' | date_add(60)", "2026-03-01T00:01:00+02:00"),
    ],
    "date_diff": [("'2026-03-02' | date_diff('2026-03-01')", 86400)],
    "default": [
        ("nope.x.y | default(5)", 5),
        ("m.b | default(5)", 1),
        ("none_ | default(5)", None),
        ("'' | default(5, true)", 5),
        ("nope | default", ""),
    ],
    "dict2items": [("{'a': 1} | dict2items", [{"key": "a", "value": 1}])],
    "dictsort": [
        ("{'b': 1, 'A': 2} | dictsort", [["A", 2], ["b", 1]]),
        ("m | dictsort(by='key', reverse=true) | first", ["b", 1]),
    ],
    "difference": [("[1,2,2,3] | difference([2])", [1, 3])],
    "dirname": [("'/a/b.csv' | dirname", "/a")],
    "e": [("text | e", "A b&#39;c &lt;d&gt;")],
    "escape": [("'\"&' | escape", "&#34;&amp;")],
    "filesizeformat": [("13000 | filesizeformat", "13.0 kB"), ("1024 | filesizeformat(true)", "1.0 KiB")],
    "first": [("rows | first", ROWS[0]), ("[] | first | default(0)", 0)],
    "flatten": [("[1,[2,[3]]] | flatten", [1, 2, 3]), ("[1,[2,[3]]] | flatten(1)", [1, 2, [3]])],
    "float": [("'1.5' | float", 1.5), ("'x' | float(2.0)", 2.0)],
    "forceescape": [("'<' | forceescape", "&lt;")],
    "format": [
        ("'%s-%03d' | format('a', 7)", "a-007"),
        ("'{}-{b}'.format(1, b=2)", "1-2"),
        ("'%(a)s' | format(a=1)", "1"),
    ],
    "from_json": [("'[1]' | from_json", [1])],
    "fromjson": [("'{\"a\": [1, null]}' | fromjson", {"a": [1, None]})],
    "groupby": [
        ("rows | groupby('city') | map(attribute='grouper') | list", ["Oslo", "Rome"]),
        ("(rows | groupby('city') | first).list | map(attribute='id') | list", [2, 1]),
        ("rows | groupby('city', case_sensitive=true) | length", 3),
    ],
    "hash": [("'a' | hash('md5')", "0cc175b9c0f1b6a831c399e269772661")],
    "indent": [("'a\nb' | indent(2)", "a\n  b"), ("'a\n\nb' | indent('>', first=true)", ">a\n\n>b")],
    "int": [("'7' | int", 7), ("'7.9' | int", 7), ("'x' | int(5)", 5), ("'ff' | int(0, 16)", 255), ("3.9 | int", 3)],
    "intersect": [("[1,2,3] | intersect([3,1])", [1, 3])],
    "items": [("{'a': 1} | items", [["a", 1]])],
    "items2dict": [("[{'key': 'a', 'value': 1}] | items2dict", {"a": 1})],
    "join": [("[1, 'a', none] | join('-')", "1-a-None"), ("rows | join(',', attribute='n')", "b,a,C")],
    "last": [("[1, 2] | last", 2)],
    "length": [("'abc' | length", 3), ("m | length", 2)],
    "list": [("'ab' | list", ["a", "b"]), ("m | list", ["b", "a"]), ("range(2) | list", [0, 1])],
    "ljust": [("'a' | ljust(3, '.')", "a..")],
    "lower": [("'AB' | lower", "ab"), ("True | string | lower", "true")],
    "map": [
        ("rows | map(attribute='n') | list", ["b", "a", "C"]),
        ("['a'] | map('upper') | list", ["A"]),
        ("rows | map(attribute='x', default=0) | list", [0, 0, 0]),
        ("[[1,[2]]] | map(attribute='1.0') | list", [2]),
        ("['a b'] | map('split', ' ') | list", [["a", "b"]]),
    ],
    "max": [("rows | max(attribute='id')", ROWS[2]), ("['b', 'A'] | max", "b")],
    "md5": [("'a' | md5", "0cc175b9c0f1b6a831c399e269772661")],
    "merge": [("{'a': 1} | merge({'a': 2})", {"a": 2})],
    "min": [("[3, 1] | min", 1)],
    "pluck": [("rows | pluck('id')", [2, 1, 3])],
    "pprint": [("{'a': 1} | pprint", "{'a': 1}")],
    "quote": [("text | quote", "'A b'\"'\"'c <d>'")],
    "regex_findall": [
        ("'a1b22' | regex_findall('[0-9]+')", ["1", "22"]),
        ("'a1b22' | regex_findall('([a-z])([0-9]+)')", [["a", "1"], ["b", "22"]]),
    ],
    "regex_match": [("'abc' | regex_match('b')", False), ("'abc' | regex_match('A', ignorecase=true)", True)],
    "regex_replace": [("'a-b' | regex_replace('(\\\\w)-(\\\\w)', '\\\\2-\\\\1')", "b-a")],
    "regex_search": [
        ("'id=42;' | regex_search('id=(\\\\d+)')", "42"),
        ("'x' | regex_search('y')", None),
        ("'2026-03' | regex_search('(\\\\d+)-(\\\\d+)')", ["2026", "03"]),
    ],
    "reject": [("[1,2,3] | reject('odd') | list", [2]), ("[0,1] | reject | list", [0])],
    "rejectattr": [("rows | rejectattr('id', 'eq', 1) | map(attribute='id') | list", [2, 3])],
    "replace": [("'aab' | replace('a', 'x', 1)", "xab"), ("'a1' | replace(1, 2)", "a2")],
    "reverse": [("[1,2] | reverse | list", [2, 1]), ("'ab' | reverse", "ba")],
    "rjust": [("'7' | rjust(3, '0')", "007")],
    "round": [("2.567 | round(1)", 2.6), ("2.1 | round(method='ceil')", 3.0), ("2.5 | round", 2.0)],
    "safe": [("'<b>' | safe", "<b>")],
    "select": [("[1,2,3] | select('odd') | list", [1, 3]), ("[0,1,''] | select | list", [1])],
    "selectattr": [
        ("rows | selectattr('id', 'gt', 1) | map(attribute='id') | list", [2, 3]),
        ("rows | selectattr('zzz') | list", []),
        ("rows | selectattr('n', 'in', ['a']) | list", [ROWS[1]]),
    ],
    "sha1": [("'a' | sha1", "86f7e437faa5a7fce15d1ddcb9eaeaea377667b8")],
    "sha256": [("'' | sha256", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")],
    "sha512": [("('' | sha512)[:8]", "cf83e135")],
    "slice": [("[1,2,3] | slice(2)", [[1, 2], [3]]), ("[1,2,3] | slice(2, 0)", [[1, 2], [3, 0]])],
    "sort": [
        ("[3,1,2] | sort", [1, 2, 3]),
        ("['b','A'] | sort", ["A", "b"]),
        ("rows | sort(attribute='n') | map(attribute='n') | list", ["a", "b", "C"]),
        ("rows | sort(attribute='city,id', reverse=true) | map(attribute='id') | list", [3, 2, 1]),
    ],
    "split": [("'a,b' | split(',')", ["a", "b"]), ("' a  b ' | split", ["a", "b"])],
    "splitlines": [("'a\nb' | splitlines", ["a", "b"])],
    "strftime": [("'2026-03-01T12:30:05+01:00' | strftime('%d.%m.%y %H:%M:%S %z')", "01.03.26 12:30:05 +0100")],
    "string": [("1 | string", "1"), ("true | string", "True"), ("[1] | string", "[1]")],
    "striptags": [("'<p>a <b>b</b></p>' | striptags", "a b")],
    "sum": [("[1,2] | sum", 3), ("rows | sum(attribute='id', start=10)", 16), ("[[1],[2]] | sum(start=[])", [1, 2])],
    "ternary": [("true | ternary('a', 'b')", "a"), ("none | ternary(1, 2, 3)", 3)],
    "timestamp": [("'1970-01-01T00:01:00Z' | timestamp", 60), ("'1970-01-01T00:00:00.5Z' | timestamp", 0.5)],
    "title": [("'ab cd' | title", "Ab Cd")],
    "to_datetime": [
        ("'01.03.2026' | to_datetime('%d.%m.%Y')", "2026-03-01T00:00:00Z"),
        ("60 | to_datetime", "1970-01-01T00:01:00Z"),
    ],
    "to_json": [("[1] | to_json", "[1]")],
    "tojson": [
        ("{'b': [1, none, true], 'a': 'ø\"'} | tojson", '{"b": [1, null, true], "a": "ø\\""}'),
        ("{'b': 1, 'a': 2} | tojson(sort_keys=true)", '{"a": 2, "b": 1}'),
        ("[1] | tojson(indent=2)", "[\n  1\n]"),
        ("'it''s' | tojson", '"its"'),
    ],
    "trim": [("' a ' | trim", "a"), ("'xax' | trim('x')", "a")],
    "truncate": [
        ("'hello world foo' | truncate(11)", "hello world foo"),
        ("'hello big world' | truncate(9, leeway=0)", "hello..."),
        ("'abcdef' | truncate(4, true, '.', 0)", "abc."),
    ],
    "type_debug": [("1 | type_debug", "a whole number"), ("rows | type_debug", "a list")],
    "union": [("[1,2] | union([2,3])", [1, 2, 3])],
    "unique": [
        ("[1,2,1] | unique", [1, 2]),
        ("['a','A'] | unique", ["a"]),
        ("rows | unique(attribute='city') | map(attribute='id') | list", [2, 3]),
        ("[{'a': 1}, {'a': 1}] | unique", [{"a": 1}]),
    ],
    "upper": [("'a' | upper", "A")],
    "urldecode": [("'a%20b' | urldecode", "a b")],
    "urlencode": [("'a b/c' | urlencode", "a%20b/c"), ("{'q': 'a b', 'n': 1} | urlencode", "q=a%20b&n=1")],
    "wordcount": [("'a b  c' | wordcount", 3)],
    "wordwrap": [("'aa bb' | wordwrap(2)", "aa\nbb")],
    "xmlattr": [("{'a': 1, 'b': none} | xmlattr", ' a="1"')],
    "zip": [("[1,2] | zip(['a','b'])", [[1, "a"], [2, "b"]])],
}


@pytest.mark.parametrize(
    ("expression", "value"), [case for cases in WORKING.values() for case in cases], ids=lambda case: str(case)[:60]
)
def test_a_filter_works(expression, value):
    answer = evaluate("{{ " + expression + " }}", NAMES)
    assert answer == value
    assert type(answer) is type(value)


def test_every_filter_has_a_test():
    assert set(FILTERS) - set(WORKING) == {"random"}


class Drawn:
    def now(self):
        return "2026-03-01T12:00:00Z"

    def uuid(self):
        return "00000000-0000-4000-8000-000000000001"

    def random(self):
        return 0.75


def test_time_and_random_values_come_from_the_nondeterminism_source():
    template = "{{ now() }} {{ now('%Y') }} {{ uuid() }} {{ random() }} {{ [1, 2, 3, 4] | random }}"
    expected = "2026-03-01T12:00:00Z 2026 00000000-0000-4000-8000-000000000001 0.75 4"
    assert evaluate(template, {}, Drawn()) == expected
    assert evaluate("{% for i in [1] %}{{ random() }}{% endfor %}", {}, Drawn()) == "0.75"


@pytest.mark.parametrize("template", ["{{ now() }}", "{{ uuid() }}", "{{ random() }}", "{{ [1] | random }}"])
def test_without_a_nondeterminism_source_time_and_random_values_are_errors(template):
    with pytest.raises(TemplateError, match="not available here"):
        evaluate(template, {})


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ text + 1 }}", '"+" does not work between text and a whole number'),
        ("{{ 1 + none_ }}", '"+" does not work between a whole number and none'),
        ("{{ text < 1 }}", '"<" does not work between text and a whole number'),
        ("{{ -text }}", '"-" does not work on text'),
        ("{{ 1 / 0 }}", '"/" divides by zero'),
        ("{{ 1e308 * 10 }}", "too large for a number"),
        ("{{ (-8) ** 0.5 }}", "and a fraction is undefined"),
        ("{{ 3 in 5 }}", '"in" needs a list, a mapping or text on its right, not a whole number'),
        ("{{ 3 in text }}", '"in" a text looks for text, not for a whole number'),
        ("{{ 5 | length }}", "a whole number has no length"),
        ("{{ none_ | join }}", "expected a list, not none"),
        ("{{ rows | sort }}", '"<" does not work between a mapping and a mapping'),
        ("{{ 'x' | fromjson }}", "the text is not JSON"),
        ("{{ '*' | b64decode }}", "not base64"),
        ("{{ 'soon' | to_datetime }}", '"soon" is not a date (ISO 8601'),
        ("{{ '2026-03-01' | date_add('later') }}", '"later" is not a duration'),
        ("{{ 'a' | replace }}", "filter \"replace\": missing argument 'old' and 'new'"),
        ("{{ '%d' | format('a') }}", "the format does not fit its values"),
        ("{{ 'a'.split(1) }}", "split():"),
        ("{{ 'abc'.index('z') }}", "index(): substring not found"),
        ("{{ m.b.c }}", '"m.b.c" cannot be read: "m.b" is a whole number, which has no "c"'),
        ("{{ none_.x }}", '"none_.x" cannot be read: "none_" is none'),
        ("{{ rows[7] }}", '"rows.7" does not exist: "rows" has 3 elements'),
        ("{{ rows[0].idd }}", '"rows.0.idd" is not defined here; rows.0 has: id, n, city; did you mean "rows.0.id"?'),
        ("{% for r in rows %}{{ r.idd }}{% endfor %}", '"idd" is not defined here; the value has: id, n'),
        ("{% if m.bb %}{% endif %}", '"m.bb" is not defined here; m has: b, a'),
        ("{% for x in 5 %}{% endfor %}", "a for loop needs a list or a mapping, not a whole number"),
        ("{{ {[1]: 2} }}", "a list cannot be a key of a mapping"),
        ("{{ text() }}", "text is not callable"),
        ("{{ m.nope() }}", 'there is no method "nope"'),
        ("{{ rows | map(attribute='zip') | list }}", '"zip" is not defined here'),
        ("{{ rows | sum(attribute='n') }}", '"+" does not work between a whole number and text'),
        ("{{ 'a' | regex_search('(') }}", "invalid regular expression"),
        ("{{ 'a' | regex_search('(?=a)') }}", "look-ahead"),
        ("{{ rows | map('nope') | list }}", 'there is no filter "nope"'),
        ("{{ rows | select('nope') | list }}", 'there is no test "nope"'),
        ("{{ text[0:'a'] }}", "a slice needs whole numbers"),
        ("{{ 'x' | hash('crc') }}", '"crc" is not known'),
    ],
)
def test_an_error_is_described_in_terms_of_the_template(template, message):
    with pytest.raises(TemplateError) as caught:
        evaluate(template, NAMES)
    assert message in str(caught.value)
    assert caught.value.kind == "template"
    for word in ("Traceback", "NoneType", "object has no attribute", "jinja2", "Undefined", "_filter"):
        assert word not in str(caught.value)


# ── status helpers ──────────────────────────────────────────────────────────────────────


def test_status_functions_report_the_status_of_steps():
    steps = {"a": "success", "b": "failed", "c": "running", "l": "running"}
    helpers = status_functions(steps, loops_done={"l"})
    assert set(helpers) == set(STATUS_FUNCTIONS)
    requested = {
        "done('a')": True,
        "done('b')": True,
        "done('c')": False,
        "done('never')": False,
        "ok('a')": True,
        "ok('b')": False,
        "fail('b')": True,
        "fail('never')": False,
        "running('c')": True,
        "running('a')": False,
        "loop_done('l')": True,
        "loop_done('c')": False,
        "all_done(['a', 'b'])": True,
        "all_done(['a', 'c'])": False,
        "any_done(['c', 'a'])": True,
        "any_done('c', 'never')": False,
        "done('a') and not ok('b')": True,
    }
    for expression, answer in requested.items():
        assert evaluate("{{ " + expression + " }}", helpers) is answer, expression


def test_a_status_helper_names_a_step_that_does_not_exist():
    with pytest.raises(TemplateError, match='there is no step "ftech"'):
        evaluate("{{ done('ftech') }}", status_functions({}, known=["fetch"]))
