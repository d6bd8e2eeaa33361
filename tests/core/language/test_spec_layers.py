"""Layered specs: kind < executor defaults < executor < step < loop < inner loop < task, in the plan and at run time."""

from itertools import chain, combinations
from typing import Any

import pytest
import yaml

from noetl.core.language.compile import compile_playbook
from noetl.core.language.editor.plan import plan_document
from noetl.core.model.playbook import DEFAULT_MAX_TASK_RUNS
from noetl.core.pipeline.program import Programs
from noetl.tools.registry import specs

LAYERS = ("defaults", "executor", "step", "loop", "inner", "task")
SUBSETS = list(chain.from_iterable(combinations(LAYERS, size) for size in range(1, len(LAYERS) + 1)))
KINDS = ("http", "python", "postgres", "shell", "duckdb", "noop")
GENERAL = ("timeout", "max_task_runs", "effect", "result")


def keys_of(kind: str) -> list[str]:
    """The kind's own keys, and those of every task. `retry` stands beside `kind`, and `policy` is not layered."""
    return sorted({*specs()[kind].spec_keys, *GENERAL} - {"retry"})


def value_at(kind: str, key: str, layer: str) -> Any:
    """A value of the key that tells the layers apart, or at least neighbours if its values are few."""
    number = LAYERS.index(layer) + 2
    field = specs()[kind].spec_fields.get(key)
    if field is not None and field.choices:
        return field.choices[number % len(field.choices)]
    if field is not None and field.type == "boolean":
        return number % 2 == 0
    if field is not None and field.type == "mapping":
        return {"memory_mb": number}
    if field is not None and field.accepts:
        return number % 2 == 0 if "boolean" in field.accepts else number + int(field.least or 0)
    if key == "effect":
        return "at_most_once" if number % 2 else "at_least_once"
    if key == "result":
        return {"store": {"kind": "disk", "ttl": number}}
    return number


def compiled(kind: str, layers: dict[str, dict[str, Any]], body: str = "step") -> Any:
    task = {"name": "work", "kind": kind, **PARAMETERS.get(kind, {}), "spec": layers.get("task", {})}
    inner = {"in": "{{ [1] }}", "iterator": "b", "spec": layers.get("inner", {})}
    owner = {
        "spec": layers.get("step", {}),
        "loop": {"in": "{{ [1] }}", "iterator": "a", "spec": layers.get("loop", {}), "loop": inner},
        "tool": [task],
    }
    document: dict[str, Any] = {
        "apiVersion": "noetl.io/v2",
        "kind": "Playbook",
        "metadata": {"name": "layers"},
        "executor": {"spec": {**layers.get("executor", {}), "policy": {"defaults": layers.get("defaults", {})}}},
    }
    if body == "step":
        document["workflow"] = [{"step": "start", **owner}]
    else:
        document["workbook"] = {"block": owner}
        document["workflow"] = [{"step": "start", "tool": {"kind": "workbook", "block": "block"}}]
    result = compile_playbook(yaml.safe_dump(document, sort_keys=False), file="p.yaml", specs=specs())
    assert result.playbook is not None, result.diagnostics
    return result.playbook


PARAMETERS = {
    "http": {"url": "http://localhost/"},
    "python": {"code": "result = 1"},
    "postgres": {"command": "select 1", "auth": "postgresql://localhost/x"},
    "shell": {"command": "true"},
    "duckdb": {"command": "select 1"},
}


def planned(playbook: Any, body: str, key: str) -> Any:
    plan = plan_document(playbook, specs())
    owner = plan["steps"][0] if body == "step" else plan["blocks"]["block"]
    (task,) = owner["tasks"]
    return task["effect"] if key == "effect" else task["spec"].get(key)


def used(playbook: Any, body: str, key: str) -> Any:
    """The value that the pipeline and the worker use."""
    programs = Programs(playbook, specs())
    program = programs.step("start") if body == "step" else programs.block("block")
    (task,) = program.tasks
    match key:
        case "max_task_runs":
            return task.max_task_runs
        case "effect":
            return task.task.effect
        case "result":
            return {"store": task.task.output.store}
    return task.static_spec.get(key)


@pytest.mark.parametrize("body", ["step", "block"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_innermost_layer_counts_in_the_plan_and_at_run_time(kind, body):
    keys = keys_of(kind)
    for subset in SUBSETS:
        layers = {layer: {key: value_at(kind, key, layer) for key in keys} for layer in subset}
        playbook = compiled(kind, layers, body)
        expected = {key: value_at(kind, key, subset[-1]) for key in keys}
        assert {key: planned(playbook, body, key) for key in keys} == expected, subset
        assert {key: used(playbook, body, key) for key in keys} == expected, subset


@pytest.mark.parametrize("key", ["timeout", "max_task_runs"])
def test_a_map_of_the_kind_is_more_special_than_its_layer_and_less_than_inner_layers(key):
    for outer, inner in combinations(LAYERS[:-1], 2):
        layers = {outer: {key: 2, "noop": {key: 3}, "http": {key: 9}}}
        assert used(compiled("noop", layers), "step", key) == planned(compiled("noop", layers), "step", key) == 3
        layers = {**layers, inner: {key: 4}}
        assert used(compiled("noop", layers), "step", key) == planned(compiled("noop", layers), "step", key) == 4


def test_maps_are_merged_and_lists_replaced():
    layers = {
        "executor": {"timeout": {"connect": 1, "total": 9}, "tags": [1, 2]},
        "loop": {"timeout": {"read": 3}},
        "task": {"timeout": {"total": 5}, "tags": [3]},
    }
    playbook = compiled("http", layers)
    for read in (planned, used):
        assert read(playbook, "step", "timeout") == {"connect": 1, "read": 3, "total": 5}
        assert read(playbook, "step", "tags") == [3]


def test_without_a_layer_the_default_bound_of_a_pipeline_applies():
    assert used(compiled("noop", {}), "step", "max_task_runs") == DEFAULT_MAX_TASK_RUNS
