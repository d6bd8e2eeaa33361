"""Class "templates": no template takes long, whatever it calls with whatever data."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time

import pytest

from noetl.core.templates.budget import DECISION_DATA, DECISION_OPERATIONS, DECISION_TEXT, Meter
from noetl.core.templates.status_helpers import status_functions
from noetl.core.templates.template import compile_value
from noetl.core.templates.views import Missing
from noetl.errors import TemplateError
from tests.core.pipeline.pipeline_harness import drive, rule, sets, task
from tests.security.template_attacks import REPEATED, Case, cases, composed, same_places, values

SECONDS = 3.0  # CPU time of one evaluation on a slow machine; usual are 0.3 s
SIZE = 60_000
LOOPED = 1_000
LARGE = 1_000_000


class _Fixed:
    def now(self):
        return "2026-01-01T00:00:00Z"

    def uuid(self):
        return "00000000-0000-0000-0000-000000000000"

    def random(self):
        return 0.5


@pytest.fixture(scope="module")
def names():
    return {size: {**values(size), **status_functions({})} for size in (SIZE, LOOPED, LARGE)}


def attack(case: Case, names) -> float:
    """Evaluate a template and return its CPU time; any error must be the author's, in words."""
    began = time.process_time()
    with contextlib.suppress(TemplateError):
        compile_value(case.template).evaluate(names[case.size], _Fixed())
    return time.process_time() - began


def groups() -> list[tuple[str, list[Case]]]:
    found: dict[str, list[Case]] = {}
    for case in cases(seed=1, sizes=(SIZE,), looped=LOOPED):
        found.setdefault(case.name.partition(":")[0][:60], []).append(case)
    return list(found.items())


# Attempts of each case, for the page of the suite.
ATTEMPTS = {"test_no_function_of_the_language_takes_long": sum(len(each) for _, each in groups()) // len(groups())}


@pytest.mark.parametrize(("name", "attacks"), groups(), ids=[name for name, _ in groups()])
def test_no_function_of_the_language_takes_long(name, attacks, names):
    for case in attacks:
        assert attack(case, names) < SECONDS, case.name


@pytest.mark.parametrize("expression", REPEATED)
def test_repeated_work_over_large_data_is_charged(expression, names):
    body = "{% for _ in range(100000) %}{% set x = " + expression + " %}{% endfor %}"
    assert attack(Case(expression, body, LARGE), names) < SECONDS


_CHAIN = "{% if i == -1 %}" + "".join(f"{{% elif i == -{number} %}}" for number in range(2, 400)) + "{% endif %}"
_BODIES = {
    "comparisons": _CHAIN,
    "signs": "{% set x = " + "-" * 90 + "i %}",
    "fields": "{% set x = " + " or ".join(["mapping.zero"] * 90) + " %}",
    "assignments": "".join(f"{{% set a{number} = i %}}" for number in range(400)),
    "tests": "{% set x = " + " and ".join(["(nope is not defined)"] * 90) + " %}",
    "a macro": "{{ m(i) }}",
    "a caller": "{% call c() %}" + _CHAIN + "{% endcall %}",
    "a recursive loop": "{% for i in [1] recursive %}"
    + _CHAIN
    + "{% if loop.depth < 9 %}{{ loop([1] * 9) }}{% endif %}{% endfor %}",
}


@pytest.mark.parametrize("body", _BODIES.values(), ids=list(_BODIES))
def test_a_body_is_charged_for_all_of_its_nodes(body):
    macros = "{% macro m(i) %}" + _CHAIN + "{% endmacro %}{% macro c() %}{{ caller() }}{% endmacro %}"
    loops = "{% for _ in range(99999) %}{% for i in range(99999) %}" + body + "{% endfor %}{% endfor %}"
    began = time.process_time()
    with pytest.raises(TemplateError, match="more than 500,000 operations"):
        compile_value(macros + loops).evaluate({"mapping": {"zero": 0}})
    assert time.process_time() - began < SECONDS


@pytest.mark.parametrize("case", list(composed(seed=1, number=60)), ids=lambda case: case.template[:60])
def test_no_composition_of_functions_takes_long(case, names):
    assert attack(case._replace(size=LARGE), names) < SECONDS


@pytest.mark.parametrize(
    "template",
    [
        "{{ value[name] }}",
        "{{ value | map(name) }}",
        "{{ value | select(name) }}",
        "{{ name | hash(name) }}",
        "{{ ('%(x' ~ name ~ ')s') % value }}",
        "{{ [1].index(name) }}",
        "{{ missing[name] + 1 }}",
        "{{ missing.a.b[name].c[name] + 1 }}",
    ],
)
def test_a_message_has_a_limited_length(template):
    """A message is stored with the event of the failure; its texts are whole or absent, never cut."""
    data = {"value": {"a": 1}, "name": "n" * 3_000_000, "missing": Missing("output.error", "there was no error")}
    with pytest.raises(TemplateError) as caught:
        compile_value(template).evaluate(data)
    assert len(str(caught.value)) < 20_000
    assert "n" * 1000 not in str(caught.value)


def test_a_name_of_nested_data_is_not_written_into_a_message():
    with pytest.raises(TemplateError, match="is not known"):
        compile_value("{{ 'a' | hash(shared) }}").evaluate(values(40))


@pytest.mark.parametrize("owner", ["letters", "integers", "mapping", "view", "result", "results[0]", "one", "range"])
@pytest.mark.parametrize("key", ["shared", "namespace(a=shared)"])
@pytest.mark.parametrize(
    "form", ["{{ OWNER[KEY] }}", "a{{ OWNER[KEY] + 1 }}", "{% for i in [1] %}{{ OWNER[KEY] }}{% endfor %}"]
)
def test_nested_data_as_a_key_is_not_written_into_a_message(owner, key, form):
    began = time.process_time()
    with pytest.raises(TemplateError):
        compile_value(form.replace("OWNER", owner).replace("KEY", key)).evaluate(values(400))
    assert time.process_time() - began < SECONDS


def test_the_name_of_a_missing_field_does_not_grow(names):
    step = "{% set ns.m = ns.m.xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx %}"
    body = "{% set ns = namespace(m=missing) %}{% for i in range(100000) %}" + step + "{% endfor %}"
    assert attack(Case("missing", body, LOOPED), names) < SECONDS


@pytest.mark.parametrize("size", [1 << 14, 1 << 16, 1 << 18])
@pytest.mark.parametrize(
    "made", ["dict(keys | zip(keys))", "keys | zip(keys) | map('list') | list | length and dict(keys | zip(keys))"]
)
def test_searches_that_read_the_same_places_are_charged(size, made):
    """Numbers can be chosen so that a search in a mapping reads all of its keys."""
    keys, absent = same_places(size)
    body = "{% set m = " + made + " %}{% for _ in range(100000) %}{% for k in absent %}{% set x = m[k] %}{% endfor %}"
    began = time.process_time()
    with pytest.raises(TemplateError, match="operations"):
        compile_value(body + "{% endfor %}").evaluate({"keys": keys, "absent": absent})
    assert time.process_time() - began < SECONDS


@pytest.mark.parametrize("expression", ["namespace(a)", "dict(a)", "{a[0][0]: 1, a[1][0]: 2}"])
def test_numbers_with_the_same_hash_value_are_no_keys(expression):
    pairs = [[(index + 1) * ((1 << 61) - 1), 1] for index in range(60_000)]
    began = time.process_time()
    with pytest.raises(TemplateError, match="cannot be a key of a mapping"):
        compile_value("{% set x = " + expression + " %}").evaluate({"a": pairs})
    assert time.process_time() - began < SECONDS


@pytest.mark.parametrize(
    "literal", ["0x" + "f" * 100_000, "0b" + "1" * 5000, "9" * 2000, "9" * 5000, "1_" * 9000 + "1", "-0x" + "f" * 2000]
)
def test_a_literal_has_a_limited_number_of_bits(literal):
    with pytest.raises(TemplateError, match="more than 4,096 bits"):
        compile_value("{% set b = " + literal + " %}{{ m[b] }}")


def test_a_cycler_without_values_is_an_error_of_the_author():
    with pytest.raises(TemplateError, match="cycler"):
        compile_value("{{ cycler() }}").evaluate({})


MEMORY = """
import resource, sys
from noetl.core.templates.template import compile_value
from noetl.errors import TemplateError
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (320 << 20),) * 2)
try:
    compile_value(sys.stdin.read()).evaluate({})
except TemplateError as problem:
    print(problem)
"""


@pytest.mark.parametrize(
    "template",
    [
        "{{ ('%41' * 5000000) | urldecode | length }}",
        "{{ ''.join('€' * 8000000) | length }}",
        "{% for i in range(100) %}{% set x = ['😀' * 1200000, i] %}{% endfor %}",
        *("{{ " + digits * 60_000 + " }}" for digits in ("1", "1_1", "1.", "0x_f")),
        "{% set a = '😀' * 8000000 %}{{ [a ~ 'b', a + 'c', a[1:], a.replace('x', ''), a | upper, '%s' % a] | length }}",
        "{% set a = '😀 ' * 3000000 %}{{ [a.split(' '), a.splitlines(), a.rpartition(' '), a | list] | length }}",
    ],
)
def test_no_template_takes_much_memory(template):
    done = subprocess.run([sys.executable, "-c", MEMORY], input=template, capture_output=True, text=True, check=True)
    assert "memory" not in done.stdout


@pytest.mark.parametrize(
    "template",
    [
        "{{ ('a'*800000).rfind('ab' ~ 'a'*400000) > 5 }}",
        "{{ ('a'*800000).rindex('ab' ~ 'a'*400000) }}",
        "{{ ('a'*800000).rpartition('ab' ~ 'a'*400000) }}",
        "{{ ('a'*800000).rsplit('ab' ~ 'a'*400000) }}",
        "{{ range(30000) | map('string') | map('int') | list | unique | length }}",
        "{{ big % 7 == 1 }}",
        "{{ ('f' * 1000000) | int(0, 16) % 7 }}",
        "{{ ('a' * 800000) | wordwrap(1) }}",
    ],
)
def test_expensive_functions_end_with_the_kind_limit_or_a_value(template, names):
    began = time.process_time()
    with contextlib.suppress(TemplateError):
        compile_value(template).evaluate({"big": 10**4000}, _Fixed())
    assert time.process_time() - began < SECONDS


def test_colliding_hash_values_do_not_slow_unique_union_and_mappings():
    colliding = [index * ((1 << 61) - 1) for index in range(20_000)]
    began = time.process_time()
    unique = compile_value("{{ a | unique | length }}").evaluate({"a": colliding})
    assert unique == len(colliding)
    assert compile_value("{{ a | union(a) | length }}").evaluate({"a": colliding}) == len(colliding)
    with pytest.raises(TemplateError, match="cannot be a key of a mapping"):
        compile_value("{{ dict(a | zip(a)) | length }}").evaluate({"a": colliding})
    assert time.process_time() - began < SECONDS


def test_numbers_that_are_equal_have_one_mark():
    data = {"a": [1, 1.0, True, 2**70, 2.0**70, [1, {"x": 1.0}], [1.0, {"x": True}], "1", None]}
    assert compile_value("{{ a | unique }}").evaluate(data) == [1, 2**70, [1, {"x": 1.0}], "1", None]


def test_a_comparison_without_a_budget_is_only_made_for_small_values():
    """`a == b` has no budget at first; nested data needs one, whatever its outer length."""
    left, right = [[list(range(2_000_000))]], [[list(range(2_000_000))]]
    for sign in ("==", "<", "in", "!="):
        compiled = compile_value("{{ a " + sign + " b }}")
        with contextlib.suppress(TemplateError):
            compiled.evaluate({"a": left, "b": [right] if sign == "in" else right})
        assert compiled._needs_budget


def test_hints_for_unknown_names_compare_a_limited_number_of_names():
    similar = {"a" * 60 + f"{index:06}": index for index in range(100_000)}
    began = time.process_time()
    with pytest.raises(TemplateError, match="not defined"):
        compile_value("{{ m." + "a" * 66 + " }}").evaluate({"m": similar})
    assert time.process_time() - began < SECONDS


def test_all_templates_of_one_decision_share_a_meter():
    meter = Meter()
    heavy = compile_value("{% for i in range(90000) %}{% endfor %}{{ true }}")
    for _ in range(DECISION_OPERATIONS // 200_000):
        assert heavy.holds({}, None, meter) is True
    with pytest.raises(TemplateError, match="the templates of one decision") as caught:
        [heavy.holds({}, None, meter) for _ in range(4)]
    assert caught.value.kind == "limit"
    meter.reset()
    assert heavy.holds({}, None, meter) is True


def test_all_templates_of_one_decision_share_a_limit_of_text():
    meter = Meter()
    large = compile_value("{{ 'a' * 15000000 }}")
    for _ in range(DECISION_TEXT // 15_000_000):
        assert len(large.evaluate({}, meter=meter)) == 15_000_000
    with pytest.raises(TemplateError, match="one decision create more than 134,217,728 characters") as caught:
        large.evaluate({}, meter=meter)
    assert caught.value.kind == "limit"
    meter.reset()
    assert len(large.evaluate({}, meter=meter)) == 15_000_000


@pytest.mark.parametrize(
    "template",
    ["{{ big }}", "{{ rows }}", "{{ [big] * 10 }}", "{{ {'a': rows} }}", "{{ [big, [big]] }}", "{{ w.rows[0] }}"],
)
def test_a_result_counts_as_often_as_it_is_returned(template):
    """`{{ big }}` a thousand times is one text in memory, and a gigabyte of JSON."""
    big = "a" * 10_000_000
    meter, compiled = Meter(), compile_value([template] * (DECISION_DATA // len(big) + 1))
    with pytest.raises(TemplateError, match="one decision return more than 268,435,456 bytes of data") as caught:
        compiled.evaluate({"big": big, "rows": [{"a": big}], "w": {"rows": [[big]]}}, meter=meter)
    assert caught.value.kind == "limit"


LARGE_TEXTS = {f"k{number}": "{{ 'a' * (15000000 + " + str(number) + ") }}" for number in range(60)}
SAME_TEXT = {f"k{number}": "{{ workload.big }}" for number in range(60)}


@pytest.mark.parametrize("values", [LARGE_TEXTS, SAME_TEXT], ids=["new texts", "one text"])
@pytest.mark.parametrize(
    "places",
    [
        lambda values: {"task": {"input": values}},
        lambda values: {"task": {"input": {"nested": list(values.values())}}},
        lambda values: {"task": {"spec": values}},
        lambda values: {"task": {"assignments": sets(**{f"step_{key}": each for key, each in values.items()})}},
        lambda values: {"step": {"assignments": sets(**{f"step_{key}": each for key, each in values.items()})}},
        lambda values: {
            "task": {"rules": [rule(True, "continue", assignments=sets(**{f"step_{k}": v for k, v in values.items()}))]}
        },
    ],
    ids=["input", "nested input", "spec", "task set", "step set", "rule set"],
)
def test_all_templates_of_one_task_share_limits_on_a_worker(places, values):
    given = places(values)
    run = drive(task("a", **given.get("task", {})), workload={"big": "a" * 10_000_000}, **given.get("step", {}))
    assert run.finished.outcome.error.kind == "limit"
    assert "the templates of one decision" in run.finished.outcome.error.message


def test_templates_that_fail_use_the_meter_too():
    meter = Meter()
    failing = compile_value("{% for i in range(90000) %}{% endfor %}{{ 1 // 0 }}")
    for _ in range(DECISION_OPERATIONS // 180_000):
        with pytest.raises(TemplateError, match="divides by zero"):
            failing.evaluate({}, None, meter=meter)
    began = time.process_time()
    for _ in range(1000):
        with pytest.raises(TemplateError, match="the templates of one decision"):
            failing.evaluate({}, None, meter=meter)
    assert time.process_time() - began < SECONDS
