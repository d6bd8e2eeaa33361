"""Values of the settings and parameters of every plug-in kind are checked by `noetl validate`, as those of packaged kinds."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from noetl.core.language.compile import compile_playbook
from noetl.core.model.tool import Field, ToolSpec, rendered_problem
from noetl.tools.registry import specs

PLUGINS = Path(__file__).resolve().parents[2] / "plugins"
NUMBERS = {"integer", "number"}


def declared(group: str) -> Iterator[Any]:
    """What the plug-ins of this repository declare in a group of entry points; importing it needs no driver."""
    for file in sorted(PLUGINS.glob("*/pyproject.toml")):
        points = tomllib.loads(file.read_text())["project"]["entry-points"].get(group, {})
        sys.path.insert(0, str(file.parent))
        try:
            for value in points.values():
                module, _, name = value.partition(":")
                found = import_module(module)
                yield getattr(found, name) if name else found
        finally:
            sys.path.remove(str(file.parent))


KINDS: dict[str, ToolSpec] = {each.SPEC.kind: each.SPEC for each in declared("noetl.tools")}
CONNECTORS = [*declared("noetl.sources"), *declared("noetl.targets")]


def wrong_values(field: Field) -> Iterator[Any]:
    """Literals that a field does not accept."""
    types = set(field.accepts or (field.type,))
    if types <= NUMBERS:
        yield "many"
    if types == {"boolean"}:
        yield "perhaps"
    if types == {"string"} and not field.choices:
        yield {"a": 1}
    if field.choices:
        yield f"{field.choices[0]}x"
    if field.least is not None:
        yield field.least - 1000
    if field.most is not None:
        yield field.most + 1000


def test_every_plug_in_kind_is_found() -> None:
    assert {"mysql", "kafka", "sftp", "clickhouse", "redis", "adbc", "snowflake", "quantum", "container"} <= set(KINDS)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_setting_declares_its_values(kind: str) -> None:
    spec = KINDS[kind]
    assert set(spec.spec_keys) - set(spec.spec_fields) <= {"timeout"}
    for name, field in {**spec.spec_fields, **spec.fields}.items():
        if set(field.accepts or (field.type,)) <= NUMBERS:
            assert field.least is not None, f"{name}: the smallest value"


def test_numbers_of_sources_and_targets_declare_their_ranges() -> None:
    for spec in CONNECTORS:
        for name, field in spec.fields.items():
            if set(field.accepts or (field.type,)) <= NUMBERS:
                assert field.least is not None, f"{spec.kind}: {name}"


def findings(kind: str, task: dict[str, Any], executor: dict[str, Any] | None = None) -> list[tuple[str, str]]:
    spec = KINDS[kind]
    required = {name: "x" for name, field in spec.fields.items() if field.required}
    required |= {group[0]: "x" for group in spec.requires}
    for name, choices in ((name, field.choices) for name, field in spec.fields.items() if field.required):
        if choices:
            required[name] = choices[-1]
    document = {
        "apiVersion": "noetl.io/v2", "kind": "Playbook", "metadata": {"name": "p"},
        "executor": {"spec": executor or {}},
        "workflow": [{"step": "start", "tool": {"kind": kind, **required, **task}}],
    }  # fmt: skip
    text = yaml.safe_dump(document, sort_keys=False)
    found = compile_playbook(text, file="p.yaml", specs={**specs(), **KINDS}).diagnostics
    return [(each.code, each.message) for each in found if each.code != "missing-parameter"]


SETTINGS = [
    (kind, name, value)
    for kind, spec in KINDS.items()
    for name, field in spec.spec_fields.items()
    for value in wrong_values(field)
]


@pytest.mark.parametrize(("kind", "name", "value"), SETTINGS)
def test_a_wrong_setting_is_reported_of_the_task_of_the_kind_and_above_tasks(kind: str, name: str, value: Any) -> None:
    for found in (
        findings(kind, {"spec": {name: value}}),
        findings(kind, {}, {kind: {name: value}}),
        findings(kind, {}, {name: value}),
    ):
        assert [code for code, _ in found] == ["parameter-type"], found
        assert f"`{name}`" in found[0][1]


def test_a_rendered_setting_is_checked() -> None:
    assert rendered_problem("spec.shots", 0, KINDS["quantum"].spec_fields["shots"]) is not None
    assert rendered_problem("spec.inline_rows", "some", KINDS["mysql"].spec_fields["inline_rows"]) is not None


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("mysql", "port", 70000),
        ("mysql", "port", "abc"),
        ("mysql", "auth", {"host": "db", "port": 0}),
        ("mysql", "params", "day"),
        ("mysql", "command", {"sql": "SELECT 1"}),
        ("mysql", "script", "init.sql"),
        ("adbc", "params", 7),
        ("sftp", "auth", {"host": "h", "port": "ssh"}),
        ("sftp", "auth", 7),
        ("clickhouse", "settings", "max_threads=1"),
        ("redis", "command", {"get": "x"}),
        ("redis", "commands", [5]),
        ("kafka", "start", "begin"),
        ("kafka", "start", {"0": -5}),
        ("kafka", "limit", 0),
        ("container", "memory", "much"),
        ("container", "memory", 0),
        ("container", "cpu", -1),
        ("container", "env", "A=b"),
        ("container", "user", ["root"]),
        ("quantum", "optimization_level", 4),
    ],
)
def test_a_wrong_parameter_is_reported(kind: str, name: str, value: Any) -> None:
    found = findings(kind, {name: value})
    assert [code for code, _ in found] == ["parameter-type"], found


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("mysql", "port", "3307"),
        ("mysql", "auth", {"host": "db", "port": "{{ workload.port }}"}),
        ("kafka", "start", {"0": 5}),
        ("kafka", "start", "latest"),
        ("redis", "commands", ["GET a", ["SET", "b", 1]]),
        ("container", "memory", "512Mi"),
        ("container", "memory", "1.5 gb"),
        ("container", "cpu", "500m"),
        ("container", "user", 1000),
        ("clickhouse", "settings", {"max_threads": 1}),
    ],
)
def test_a_right_parameter_is_not_reported(kind: str, name: str, value: Any) -> None:
    found = findings(kind, {name: value})
    assert [code for code, _ in found if code == "parameter-type"] == [], found
