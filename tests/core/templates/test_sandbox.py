"""What a template must not reach, and what it must not be able to use up."""

import resource
import time

import pytest

from noetl.core.templates.template import evaluate
from noetl.errors import TemplateError

NAMES = {"ctx": {"a": [1, 2], "s": "text", "d": {"k": 1}, "big": list(range(50_000))}}

ESCAPES = [
    "{{ ''.__class__ }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ ''['__class__'] }}",
    "{{ ctx['__class__'] }}",
    "{{ ctx.a.__class__.__base__ }}",
    "{{ (1).__class__ }}",
    "{{ ctx|attr('__class__') }}",
    "{{ ctx.a|map(attribute='__class__')|list }}",
    "{{ ctx.a|sum(attribute='__class__') }}",
    "{{ '{0.__class__.__init__.__globals__}'.format(ctx) }}",
    "{{ '{a.__class__}'.format_map({'a': 1}) }}",
    "{{ '{0[__class__]}'.format(ctx) }}",
    "{{ '{0.__class__}'|format(1) }}",
    "{{ range.__init__ }}",
    "{{ range.function }}",
    "{{ range.__globals__ }}",
    "{{ dict.__subclasses__() }}",
    "{{ dict.mro() }}",
    "{{ ctx.a.append(3) }}",
    "{{ ctx.a.pop() }}",
    "{{ ctx.d.update({'x': 1}) }}",
    "{{ ctx.d.clear() }}",
    "{{ ctx.d.setdefault('x', 1) }}",
    "{{ namespace.__init__ }}",
    "{{ cycler.__init__.__globals__.os }}",
    "{{ joiner.__init__.__globals__ }}",
    "{{ lipsum.__globals__ }}",
    "{{ self.__init__ }}",
    "{{ self._TemplateReference__context }}",
    "{% for i in [1] %}{{ loop.__class__ }}{% endfor %}",
    "{% for i in [1] %}{{ loop._iterator }}{% endfor %}",
    "{% for i in [1] %}{{ loop.cycle.__globals__ }}{% endfor %}",
    "{% for i in [1] %}{{ loop.changed.__self__ }}{% endfor %}",
    "{% macro m() %}{% endmacro %}{{ m._environment }}",
    "{% macro m() %}{% endmacro %}{{ m.__call__ }}",
    "{% set ns = namespace() %}{{ ns.__class__ }}",
    "{% set ns = namespace() %}{{ ns._Namespace__attrs }}",
    "{% set c = cycler(1, 2) %}{{ c.items }}",
    "{% include 'x' %}",
    "{% import 'os' as os %}",
    "{% from 'x' import y %}",
    "{% extends 'x' %}",
    "{{ config }}",
    "{{ request }}",
    "{{ open('/etc/passwd') }}",
    "{{ __import__('os') }}",
    "{{ ctx() }}",
    "{{ 'a'() }}",
    "{{ ctx.s.upper.function }}",
    "{{ ctx.s.upper.bound }}",
    "{{ ctx.s.encode }}",
    "{{ ctx.s.translate }}",
    "{{ ctx.s.__len__() }}",
    "{{ (1).real }}",
    "{{ (1).to_bytes(4) }}",
    "{{ env.HOME }}",
    "{{ ctx.a|map('attr', '__class__')|list }}",
    "{{ ctx.a|selectattr('__class__') | list | first }}",
    "{{ ctx.a|groupby('__class__') }}",
]


@pytest.mark.parametrize("template", ESCAPES)
def test_a_template_cannot_leave_the_sandbox(template):
    before = repr(NAMES)[:200]
    with pytest.raises(TemplateError) as caught:
        evaluate(template, NAMES)
    assert "Traceback" not in str(caught.value)
    assert "<class" not in str(caught.value)
    assert repr(NAMES)[:200] == before


def test_the_environment_is_refused_with_an_alternative():
    with pytest.raises(TemplateError, match="kind: env"):
        evaluate("{{ env.HOME }}", {})


DOUBLING = "{% set ns = namespace(x=START) %}{% for i in range(60) %}{% set ns.x = STEP %}{% endfor %}{{ ns.x USE }}"


def doubling(start, step, use=""):
    return DOUBLING.replace("START", start).replace("STEP", step).replace("USE", use)


BOMBS = [
    "{{ 'a' * 10**9 }}",
    "{{ 10**9 * 'a' }}",
    "{{ (9**9)**(9**9) }}",
    "{{ 2**100000 }}",
    "{{ 10**4000 * 10**4000 }}",
    "{{ [0] * 10**9 }}",
    "{{ (1,) * 10**9 }}",
    "{{ range(10**9) | list }}",
    "{{ range(10**30) }}",
    "{{ 'a'.center(10**9) }}",
    "{{ 'a'.ljust(10**9) }}",
    "{{ 'a'.rjust(10**9) }}",
    "{{ 'a'.zfill(10**9) }}",
    "{{ 'a' | center(10**9) }}",
    "{{ 'a' | ljust(10**9) }}",
    "{{ 'a' | rjust(10**9) }}",
    "{{ '%999999999d' % 1 }}",
    "{{ '%.999999999f' % 1.0 }}",
    "{{ '%999999999d' | format(1) }}",
    "{{ '{:999999999}'.format(1) }}",
    "{{ '{:{}}'.format(1, 10**9) }}",
    "{{ ('%s' * 1000) % ('a' * 10**6) }}",
    "{{ '%s%s' % ('a' * 10**7, 'b' * 10**7) }}",
    "{{ 'a\tb'.expandtabs(10**9) }}",
    "{{ ('a' * 10**6) | replace('a', 'b' * 10**6) }}",
    "{{ ('a' * 10**6).replace('a', 'b' * 1000) }}",
    "{{ (['a' * 10**6] * 1000) | join(',') }}",
    "{{ ','.join(['a' * 10**6] * 1000) }}",
    "{{ ('a' * 10**7) ~ ('a' * 10**7) }}",
    "{{ ('a' * 10**7) + ('a' * 10**7) }}",
    "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
    "{% for i in ctx.big %}{% for j in ctx.big %}{{ j }}{% endfor %}{% endfor %}",
    "{% for i in range(100000) %}{{ 'a' * 1000 }}{% endfor %}",
    "{% for i in range(100000) %}" + "x" * 1000 + "{% endfor %}",
    "{% set x %}{% for i in range(100000) %}" + "x" * 1000 + "{% endfor %}{% endset %}{{ x }}",
    "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(1) }}",
    "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "{% for i in range(90000) recursive %}{{ loop(range(90000)) }}{% endfor %}",
    "{{ [1, 2, 3] | batch(10**9, 0) }}",
    "{{ [1] | slice(10**9) }}",
    "{{ 1 | round(-10**9) }}",
    "{{ 1.5 | round(10**9) }}",
    "{{ 'a' | indent(10**9) }}",
    "{{ ('a\n' * 10**6) | indent(1000) }}",
    "{{ ([range(100000) | list] * 1000) | sum(start=[]) }}",
    "{{ ([range(100000) | list] * 10000) | flatten }}",
    "{{ [[[1] * 1000] * 1000] * 1000 == [[[1] * 1000] * 1000] * 1000 }}",
    "{{ ([[1] * 100000] * 1000) }}",
    "x{{ ([[1] * 100000] * 1000) }}",
    "{{ ([[1] * 100000] * 1000) | tojson }}",
    "{{ ([[1] * 100000] * 1000) | unique }}",
    "{{ {'a': [[1] * 100000] * 1000} }}",
    "{{ '%s' % ([[1] * 100000] * 1000) }}",
    "{{ '{}'.format([[1] * 100000] * 1000) }}",
    "{{ ('a' * 10**7) | list | length }}",
    "{{ ('a' * 10**7).split('a') | length }}",
    "{{ ('a ' * 5 * 10**6) | split | length }}",
    "{{ range(100000) | map('center', 10000) | list }}",
    "{{ range(100000) | map('string') | map('center', 10000) | join }}",
    "{{ ('x' * 10**7) | urlencode }}",
    "{{ '2020-01-01' | strftime('%Y' * 10000) }}",
    "{{ '2020-01-01' | strftime('%10000000Y') }}",
    "{{ ('[' * 100000) | fromjson }}",
    "{{ ('x' * 100000) | regex_replace('', 'y' * 10000) }}",
    "{{ 'a' | regex_search('(a{1000}b){1000}') }}",
    "{{ 'a' | regex_search('a' * 2000) }}",
    "{{ " + "(" * 500 + "1" + ")" * 500 + " }}",
    "{{ " + "[" * 300 + "]" * 300 + " }}",
    "{{ " + "not " * 5000 + "1 }}",
    "{{ " + "-" * 5000 + "1 }}",
    "{{ ctx" + ".a" * 5000 + " }}",
    "{{ 1" + "+1" * 30000 + " }}",
    "{{ 1" + "~1" * 30000 + " }}",
    "{{ 1 }}" * 40000,
    "{% if 1 %}" * 500 + "{% endif %}" * 500,
    "{% for i in [1] %}" * 200 + "{% endfor %}" * 200,
    "x" * 2 * 1024 * 1024 + "{{ 1 }}",
    doubling("'a'", "ns.x ~ ns.x"),
    doubling("'a'", "ns.x + ns.x"),
    doubling("[1]", "ns.x + ns.x"),
    doubling("[1]", "[ns.x, ns.x]"),
    doubling("[1]", "(ns.x, ns.x)"),
    doubling("[1]", "{'a': ns.x, 'b': ns.x}", "| tojson"),
    doubling("2", "ns.x * ns.x"),
    doubling("[1]", "[ns.x, ns.x] | list", "== 1"),
    doubling("[1]", "[ns.x, ns.x] | reverse | sort"),
    doubling("{'a': 1}", "dict(a=ns.x, b=ns.x)", "| string"),
]


@pytest.mark.parametrize("template", BOMBS, ids=lambda template: " ".join(template.split())[:60])
def test_a_bomb_is_refused_quickly_and_in_little_memory(template):
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    with pytest.raises(TemplateError) as caught:
        evaluate(template, NAMES)
    assert caught.value.kind == "limit", str(caught.value)
    assert time.process_time() - began < 4
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 300 * 1024  # KiB


def test_repeating_an_expensive_operation_exceeds_the_limit():
    templates = [
        "{% set x = [1] * 100000 %}{% set y = [1] * 100000 %}{% for i in range(100000) %}{{ x == y }}{% endfor %}",
        "{% set x = [1] * 100000 %}{% for i in range(100000) %}{{ 2 in x }}{% endfor %}",
        "{% set x = 'a' * 1000000 %}{% for i in range(100000) %}{{ x | upper | length }}{% endfor %}",
        "{% set x = 'a' * 1000000 %}{% for i in range(100000) %}{{ x.find('b') }}{% endfor %}",
        "{% set x = range(100000) | list %}{% for i in range(100000) %}{{ x | sort | first }}{% endfor %}",
        "{% set x = range(100000) | list %}{% for i in range(100000) %}{{ x[1:] | length }}{% endfor %}",
    ]
    for template in templates:
        began = time.process_time()
        with pytest.raises(TemplateError) as caught:
            evaluate(template, {})
        assert caught.value.kind == "limit"
        assert time.process_time() - began < 4, template


def test_ordinary_work_on_ordinary_data_stays_within_the_limits():
    rows = [{"id": i, "name": f"n{i}", "tags": ["a", "b"], "price": i / 7} for i in range(20_000)]
    scope = {"rows": rows}
    assert len(evaluate("{{ rows | selectattr('id', 'gt', 10) | map(attribute='name') | list }}", scope)) == 19_989
    assert len(evaluate("{{ rows | tojson }}", scope)) > 1_000_000
    assert evaluate("{{ rows | sum(attribute='id') }}", scope) == sum(range(20_000))
    text = evaluate("{% for r in rows %}('{{ r.id }}', '{{ r.name | upper }}'),\n{% endfor %}", scope)
    assert text.count("\n") == 20_000
    assert evaluate("{{ {'rows': rows, 'n': rows | length} }}", scope) == {"rows": rows, "n": 20_000}
    assert evaluate("{{ rows }}", scope) is rows
