"""Templates that try to take much time: every filter, test, method and operator with adversarial arguments.

The cases are generated from the tables of the template language, so a new function is attacked as soon as it exists.
Each case is evaluated once over large data, and in a loop over data of medium size, where costs that are not charged
add up.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

from noetl.core.model.outcome import Outcome
from noetl.core.templates import functions, operators
from noetl.core.templates.filters import FILTERS
from noetl.core.templates.predicates import TESTS
from noetl.core.templates.views import Missing, OutputView, ResultView

_COLLIDING = (1 << 61) - 1  # Python's hash values of whole numbers are modulo this


class Case(NamedTuple):
    """One template; the values it reads are `values(size)`."""

    name: str
    template: str
    size: int


def _nested(depth: int, data: Any = "x") -> Any:
    for _ in range(depth):
        data = [data]
    return data


def same_places(size: int) -> tuple[list[int], list[int]]:
    """Keys of a mapping, and numbers for each of which a search in it reads most keys before it ends.

    A mapping with 2**n places looks at `5 * place + 1` next, after the higher bits of the number are used up."""
    keys, place = [], 0
    for _ in range(size // 2):
        keys.append(place)
        place = (5 * place + 1) % size
    filled = {key: number for number, key in enumerate(keys)}
    chosen = random.Random(1)
    found: list[int] = []
    while len(found) < 100:
        number = rest = chosen.randrange(size, 32 * size)
        place = number % size
        while place in filled and rest:
            rest >>= 5
            place = (5 * place + rest + 1) % size
        if not rest and filled.get(place, size) < size // 16:
            found.append(number)
    return keys, found


def _cyclic_free_dag(levels: int) -> Any:
    """Data whose references are shared: small in memory, exponential to traverse."""
    data: Any = ["x"]
    for _ in range(levels):
        data = [data, data]
    return data


def values(size: int) -> dict[str, Any]:
    """Adversarial values by name, of about `size` characters or elements in total."""
    half = size // 2
    rows = [{"id": index, "name": f"n{index}", "tags": ["a", "b"]} for index in range(size // 20)]
    return {
        "letters": "a" * size,
        "half": "b" + "a" * half,
        "late": "a" * half + "b",
        "pairs": "ab" * half,
        "spaces": " " * size,
        "words": "a " * half,
        "lines": "\n" * size,
        "tabs": "\t" * half,
        "digits": "9" * size,
        "hexadecimal": "f" * size,
        "dashes": "a-" * half,
        "wide": "ﬃ" * size,
        "dotted": "a." * half,
        "percent": "%(" * half,
        "conversions": "%s" * half,
        "named": "%(a)s" * (size // 5),
        "fields": "{0}" * (size // 3),
        "path": "{0" + "[a]" * (size // 3) + "}",
        "reprs": "{0!r}" * (size // 5),
        "markup": "<a" * half,
        "quotes": "\"&'" * (size // 3),
        "json": "[" * half + "]" * half,
        "numbers_json": "[" + ",".join(["9" * 4000] * max(size // 4000, 1)) + "]",
        "base64": "QUFB" * (size // 4),
        "pattern": "(a*)*b" + "a?" * 200,
        "pattern_sets": "[" * 900,
        "pattern_counts": "(?:a{50}){15}b",
        "format": "%d.%m.%Y %H:%M:%S.%f",
        "integers": list(range(half)),
        "colliding": [index * _COLLIDING for index in range(half // 2)],
        "colliding_pairs": [[index * _COLLIDING, 1] for index in range(half // 4)],
        "tuples": [(index, index * _COLLIDING) for index in range(half // 4)],
        "similar": ["a" * 60 + str(index) for index in range(size // 60)],
        "texts": ["a" * half, "a" * half + "b"],
        "nested": [[["a" * half], list(range(half))]],
        "nested_too": [[["a" * half], list(range(half))]],
        "deep": _nested(190),
        "deeper": _nested(900),
        "deep_text": _nested(190, "x" * size),
        "shared": _cyclic_free_dag(60),
        "shared_too": _cyclic_free_dag(60),
        "rows": rows,
        "mapping": {f"key_{index:06}": index for index in range(size // 12)},
        "mapping_too": {f"key_{index:06}": [index] for index in range(size // 12)},
        "envelope": {"data": {f"key_{index:06}": index for index in range(size // 12)}, "a": 1},
        "inner": {"a": {"b": {f"key_{index:06}": {"c": index} for index in range(size // 30)}}},
        "big": 10**4200,
        "big_too": 7**4000,
        "fraction": 1.5,
        "one": 1,
        "many": size,
        "negative": -size,
        "nothing": None,
        "percents": "%41" * (size // 3),
        "euros": "€" * size,
        "emoji": "😀" * half,
        "controls": "\x01" * size,
        "middle": "a" * half + "b" + "a" * (half - 1),
        "missing": Missing("output.error", "there was no error"),
        "results": _iterations(size),
        "results_too": _iterations(size),
        "tiny": 5e-324,
        "huge": 1.7e308,
        "floats": [index * 1.1e300 for index in range(half // 4)],
        "precise": "{0:.9999g}" * (size // 10),
        "big_numbers": [10**1200 + index for index in range(max(size // 500, 1))],
        "entries": [{"key": str(index), "value": index} for index in range(size // 20)],
        "view": OutputView(Outcome("ok", data=[["a" * half], list(range(half))])),
        "result": ResultView(Outcome("ok", data={"data": {f"k{index}": 1 for index in range(half // 4)}, "a": 1})),
        "span": range(100_000),
    }


def _iterations(size: int) -> list[Any]:
    """The results of a loop as a template sees them: a list of views."""
    data = [{"id": index, "rows": [["x" * 50] * 5] * 5} for index in range(max(size // 100, 1))]
    found: list[Any] = OutputView(Outcome("ok", data=data, helpers={"loop": {"total": len(data)}})).field("results")
    return found


NAMES = tuple(values(40))
_ARGUMENTS = (
    "letters",
    "half",
    "late",
    "integers",
    "colliding",
    "nested",
    "mapping",
    "big",
    "one",
    "many",
    "shared",
    "'a'",
)
# Constructs that no table lists.
EXPRESSIONS = (
    "missing_name",
    "mapping.key_00000x",
    "mapping_too.nothing_like_it",
    "inner.a.c",
    "result.data.a",
    "result.data.missing_name",
    "envelope.data.missing",
    "letters[::-1]",
    "integers[::-1]",
    "letters[::2]",
    "mapping[tuples[0]]",
    "mapping.get(tuples[0])",
    "{many: 1, big: 2}",
    "dict(colliding_pairs)",
    "dict(mapping, **mapping)",
    "all_done(similar)",
    "tuples in mapping",
    "'a' in span",
    "1.5 in span",
    "span.index('a')",
    "span.count('a')",
    "(1,) * 100000 in mapping",
    "mapping[(1,) * 100000]",
    "[big] * 100000 | string",
    "([big] * 100000) | tojson",
    "integers | map('add', 1) | list",
    "integers | map('string') | list",
    "words | wordwrap(1)",
    "letters | wordwrap(1)",
    "letters | wordwrap(2, false)",
    "lines | wordwrap(1)",
    "now(letters)",
    "uuid()",
    "integers | sort(attribute=dotted)",
    "rows | map(attribute=dotted) | list",
    "rows | groupby('tags') | list",
    "rows | sort(attribute='tags,name,id')",
    "letters.rfind('ab' ~ half)",
    "letters.format(*integers)",
    "conversions % tuples[0]",
    "percent % 1",
    "percent % mapping",
    "named % mapping",
    "reprs.format(nested)",
    "'{0:{1}}'.format(1, letters)",
    "(letters | int(0, 16)) % 7",
    "(hexadecimal | int(0, 16)) // 7",
    "(hexadecimal | int(0, 16)) is divisibleby(7)",
    "'2026-01-01' | date_add(spaces)",
    "'2026-01-01' | date_add(digits)",
    "letters | to_datetime(format ~ letters)",
)
STATEMENTS = (
    "{% macro m() %}TEXT{% endmacro %}{% for i in range(200000) %}{% set x = m() %}{% endfor %}",
    "{% macro m(n) %}{{ m(n) }}{{ m(n) }}{% endmacro %}{{ m(1) }}",
    "{% for i in range(100000) %}{% set x = loop.changed(nested) %}{% endfor %}",
    "{% for i in range(100000) %}{% set x = cycler(*integers) %}{% endfor %}",
    "{% for i in range(100000) %}{% set x = dict(*[mapping]) %}{% endfor %}",
    "{% for i in range(100000) %}{% set x = '' | regex_search('(?:a{50}){15}' ~ i) %}{% endfor %}",
    "{% for i in range(100000) %}{% set x = 'a' | regex_search('[' * 900 ~ i) | default('') %}{% endfor %}",
    "{% for i in range(100000) %}{% set x = '1' | to_datetime('%d' ~ i) %}{% endfor %}",
    "{% for i in range(100000) %}{% set x = '01' ~ i | to_datetime('%d' ~ i) %}{% endfor %}",
    "{% set ns = namespace(t='') %}{% for i in range(100000) %}{% set ns.t = ns.t ~ 'a' %}{% endfor %}",
    "{% set ns = namespace(t=[]) %}{% for i in range(100000) %}{% set ns.t = ns.t + [i] %}{% endfor %}",
    "{% set ns = namespace(t={}) %}{% for i in range(100000) %}{% set ns.t = dict(ns.t, a=i) %}{% endfor %}",
    "{% for i in letters recursive %}{{ loop(letters) }}{% endfor %}",
    "{% for i in integers %}{% for j in integers %}{% endfor %}{% endfor %}",
    "{% for i in range(100000) %}{{ letters | upper }}{% endfor %}",
    "{% for i in range(100000) %}{{ big }}{% endfor %}",
    "{% filter upper %}{% for i in range(100000) %}{{ letters }}{% endfor %}{% endfilter %}",
    "{% for a, b in mapping.items() %}{% for c in mapping.items() %}{{ mapping | length }}{% endfor %}{% endfor %}",
)


# Work that grows with the data and that one call does not show: each is evaluated in a loop over large data.
REPEATED = (
    "missing[letters]",
    "results == results_too",
    "results | sort",
    "results | unique",
    "results[0] in results_too",
    "results_too | max",
    "digits | filesizeformat",
    "percents | urldecode",
    "'%a' % euros",
    "'%r' % emoji",
    "precise.format(tiny)",
    "letters.find(middle[1000:])",
    "middle[1000:] in letters",
    "letters.replace(middle[1000:], 'x')",
    "letters.split(middle[1000:])",
    "letters.partition(middle[1000:])",
    "big_numbers | unique",
    "big_numbers | intersect(big_numbers)",
    "big_numbers | difference(integers)",
    "huge | round(300)",
    "letters | regex_findall('a')",
    "letters | regex_replace('a', '')",
    "namespace(**mapping)",
    "'2026-01-01' | date_add('1d ' * 60)",
    "'2026-01-01' | strftime('%c' * 90)",
    "mapping | xmlattr",
    "mapping | dict2items",
    "floats | string",
    "entries[:100000]",
    "results[::2]",
    "'' % mapping",
    "'%(key_000001)s' % mapping",
    "nested is eq(other=nested_too)",
    "nested is ne(other=nested_too)",
    "nested is sameas(other=nested_too)",
    "results is eq(other=results_too)",
    "letters is startswith(part=letters)",
    "[nested] | select('eq', other=nested_too) | list",
    "[deep_text] | unique",
    "[deep_text] | union([deep_text])",
    "namespace(mapping)",
    "floats | join",
    "result[letters]",
    "view[letters]",
)


def composed(seed: int, number: int) -> Iterator[Case]:
    """Random templates of several functions each, alone and in loops."""
    chosen = random.Random(seed)
    methods = sorted({*functions._TEXT, *functions._MAPPING, *functions._LIST})
    signs = (*operators.BINARY, "==", "<", "in", "~")

    def value(depth: int) -> str:
        if depth == 0:
            return chosen.choice((*NAMES, *_ARGUMENTS))
        inner, given = value(depth - 1), ", ".join(chosen.choices(_ARGUMENTS, k=chosen.choice((0, 0, 1, 2))))
        return chosen.choice(
            (
                f"({inner}) | {chosen.choice(list(FILTERS))}({given})",
                f"({inner}).{chosen.choice(methods)}({given})",
                f"({inner}) {chosen.choice(signs)} ({value(0)})",
                f"({inner})[::2]",
                f"[{inner}] * 1000",
            )
        )

    for _ in range(number):
        expression = value(chosen.choice((1, 2, 3)))
        form = chosen.choice(
            (
                "{{ %s }}",
                "{%% for _ in range(100000) %%}{%% set x = %s %%}{%% endfor %%}",
                "{%% for i in (%s) %%}{{ i }}{%% endfor %%}",
            )
        )
        yield Case(form % expression, form % expression, 0)


def expressions(seed: int, arguments: int = 1) -> Iterator[tuple[str, str]]:
    """(name, expression) for every function of the language, with arguments chosen by the seed."""
    chosen = random.Random(seed)

    def some(count: int) -> str:
        return ", ".join(chosen.choice(_ARGUMENTS) for _ in range(count))

    for name in FILTERS:
        for count in range(arguments + 1):
            value = chosen.choice(NAMES)
            yield f"filter {name}", f"{value} | {name}({some(count)})"
    for name in TESTS:
        if name.isidentifier() and name not in ("in", "not"):
            for count in range(arguments):
                yield f"test {name}", f"{chosen.choice(NAMES)} is {name}({some(count)})"
    for table in (functions._TEXT, functions._MAPPING, functions._LIST, functions._INT, functions._FLOAT):
        owners = _owners(table)
        for name in table:
            for count in range(arguments + 1):
                yield f"method {name}", f"{chosen.choice(owners)}.{name}({some(count)})"
    for sign in (*operators.BINARY, "==", "!=", "<", ">=", "in", "not in", "~"):
        for _ in range(4):
            yield f"operator {sign}", f"{chosen.choice(NAMES)} {sign} {chosen.choice(NAMES)}"


def _owners(table: dict[str, Any]) -> tuple[str, ...]:
    if table is functions._TEXT:
        return ("letters", "late", "pairs", "spaces", "wide", "percent", "fields", "path", "reprs", "tabs", "lines")
    if table is functions._MAPPING:
        return ("mapping", "inner")
    if table is functions._LIST:
        return ("integers", "nested", "colliding", "shared", "span", "texts")
    return ("big", "one") if table is functions._INT else ("fraction",)


def cases(seed: int, sizes: tuple[int, ...] = (200_000,), looped: int = 2_000) -> Iterator[Case]:
    """All cases of one seed."""
    fixed = [("expression", each) for each in EXPRESSIONS]
    for name, expression in [*expressions(seed), *fixed]:
        for size in sizes:
            yield Case(f"{name}: {expression} ({size:,})", "{{ " + expression + " }}", size)
        body = "{% for _ in range(100000) %}{% set x = " + expression + " %}{% endfor %}"
        yield Case(f"{name}: {expression} in a loop", body, looped)
    for statement in STATEMENTS:
        yield Case(statement, statement.replace("TEXT", "x" * 500_000), looped)
