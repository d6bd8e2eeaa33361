"""Cost of templates: evaluation by closures, evaluation by compiled Jinja code, compilation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import process_time
from typing import Any

from noetl.core.model.outcome import ok
from noetl.core.templates import sandbox
from noetl.core.templates.budget import EvaluationBudget
from noetl.core.templates.template import _compile, compile_value, jinja_closure
from noetl.core.templates.views import OutputView, ResultView

NAMES: dict[str, Any] = {
    "ctx": {"a": {"b": 3}, "items": [1, 2, 3], "name": "orders"},
    "workload": {"api_url": "http://127.0.0.1:8080", "page_size": 100},
    "iter": {"page": 2, "item": {"id": 7}},
    "output": OutputView(ok({"rows": [{"id": 1}], "row_count": 1}, http={"status": 200, "headers": {}, "url": "u"})),
    "fetch": ResultView(ok({"rows": [{"id": 1}], "row_count": 1}), name="fetch"),
}

EXPRESSIONS = {
    "path": "{{ ctx.a.b }}",
    "guard": "{{ output.status == 'error' and output.http.status in [429, 500, 502, 503, 504] }}",
    "guard_taken": "{{ output.status == 'ok' and output.http.status in [200, 201] }}",
    "count": "{{ (iter.page | int) + 1 }}",
    "default": "{{ ctx.missing | default(1) }}",
    "text": "{{ workload.api_url }}/v1/items?page={{ iter.page }}",
    "result": "{{ fetch.rows[0].id }}",
    "loop": "{% for i in ctx['items'] %}{{ i }},{% endfor %}",
}


def microseconds(call: Callable[[], Any], seconds: float = 0.2) -> float:
    """Microseconds per call, the best of five rounds."""
    number = 1
    while True:
        began = process_time()
        for _ in range(number):
            call()
        took = process_time() - began
        if took > seconds / 20:
            break
        number *= 4
    number = max(1, int(number * seconds / 5 / took))
    best = float("inf")
    for _ in range(5):
        began = process_time()
        for _ in range(number):
            call()
        best = min(best, (process_time() - began) / number)
    return best * 1e6


def evaluate() -> dict[str, float]:
    """Microseconds for one evaluation of each expression."""
    return {name: microseconds(_evaluation(text)) for name, text in EXPRESSIONS.items()}


def evaluate_by_jinja() -> dict[str, float]:
    """The same expressions evaluated by compiled Jinja code."""
    samples = {}
    for name, text in EXPRESSIONS.items():
        closure = jinja_closure(text, whole=not text.startswith("{%"))
        samples[name] = microseconds(lambda closure=closure: closure(NAMES, EvaluationBudget()))  # type: ignore[misc]
    return samples


def hold() -> dict[str, float]:
    """Microseconds for one guard."""
    return {name: microseconds(_guard(EXPRESSIONS[name])) for name in ("path", "guard", "guard_taken")}


def compile_fresh() -> dict[str, float]:
    """Microseconds to compile a template, uncached and cached."""
    fresh = {
        f"{name}_fresh": microseconds(lambda text=text: (sandbox._cached.cache_clear(), _compile(text)))  # type: ignore[misc]
        for name, text in EXPRESSIONS.items()
    }
    return {**fresh, "cached": microseconds(lambda: compile_value(EXPRESSIONS["guard"]))}


def _evaluation(text: str) -> Callable[[], Any]:
    compiled = compile_value(text)
    return lambda: compiled.evaluate(NAMES)


def _guard(text: str) -> Callable[[], Any]:
    compiled = compile_value(text)
    return lambda: compiled.holds(NAMES)


BENCHMARKS = {
    "template_evaluate": evaluate,
    "template_evaluate_jinja": evaluate_by_jinja,
    "template_holds": hold,
    "template_compile": compile_fresh,
}


def measure() -> Iterator[tuple[str, float, str]]:
    """Samples as (name, value, unit)."""
    for group, each in BENCHMARKS.items():
        for name, value in each().items():
            yield f"{group}.{name}", value, "us"


if __name__ == "__main__":
    for name, value, unit in measure():
        print(f"{name:45} {value:12,.2f} {unit}")
