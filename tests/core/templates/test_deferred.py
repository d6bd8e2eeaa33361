from __future__ import annotations

from noetl.core.templates.deferred import DeferredTemplate, compile_deferred

LATE = frozenset({"chunk", "row"})


def test_only_templates_that_read_a_deferred_name_stay_templates() -> None:
    value = {
        "path": "out/{{ workload.day }}/{{ chunk.index }}.parquet",
        "table": "{{ workload.table }}",
        "mapping": {"a": "{{ row.x | upper }}", "b": "plain"},
        "list": ["{{ chunk.size }}", 5],
    }
    compiled = compile_deferred(value, LATE)
    rendered = compiled.evaluate({"workload": {"day": "monday", "table": "t"}})
    assert rendered == {
        "path": "out/{{ workload.day }}/{{ chunk.index }}.parquet",
        "table": "t",
        "mapping": {"a": "{{ row.x | upper }}", "b": "plain"},
        "list": ["{{ chunk.size }}", 5],
    }
    assert isinstance(rendered["path"], DeferredTemplate)
    assert isinstance(rendered["mapping"]["a"], DeferredTemplate)
    assert not isinstance(rendered["table"], DeferredTemplate)


def test_the_other_names_of_a_deferred_template_are_known() -> None:
    compiled = compile_deferred(["{{ workload.day }}-{{ chunk.index }}-{{ fetch.id }}"], LATE)
    assert set(compiled.names) == {"workload.day", "fetch.id"}


def test_data_that_looks_like_a_template_is_not_deferred() -> None:
    rendered = compile_deferred({"a": "{{ workload.text }}"}, LATE).evaluate(
        {"workload": {"text": "{{ chunk.index }}"}}
    )
    assert rendered == {"a": "{{ chunk.index }}"}
    assert not isinstance(rendered["a"], DeferredTemplate)


def test_a_value_without_deferred_names_is_evaluated_as_usual() -> None:
    assert compile_deferred({"a": "b"}, LATE).static
    assert compile_deferred("{{ 1 + 1 }}", LATE).evaluate({}) == 2
