"""Hints lead where they say: what `--legacy` promises to run is valid there, and `noetl migrate` rewrites it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

import noetl
from noetl.core.language.dialects.v2025_11.rejected_keys import REJECTED, RUNS
from noetl.core.language.rewrite.migrate.to_canonical import migrate
from noetl.tools.registry import specs

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: hints}\n"
PYTHON = "kind: python, code: 'result = {\"id\": 1}'"
NOOP = "  - {step: end, tool: {kind: noop}}\n"


def _step(fields: str, more: str = NOOP) -> str:
    return f"workflow:\n  - {{step: start, {fields}}}\n{more}"


def _block(fields: str) -> str:
    return f"workbook:\n  b: {{{fields}}}\nworkflow:\n  - {{step: start, tool: {{kind: workbook, block: b}}}}\n"


_TABLE = "{tool: {kind: sqlite, file: x.db, table: t}, mode: append}"
_LOOP = 'tool: {kind: noop}, next: {arcs: [{step: end}]}, loop: {in: "{{ [1, 2] }}", iterator: n'
DOCUMENTS = {
    ("step", "when"): _step("when: '{{ true }}', tool: {kind: noop}, next: {arcs: [{step: end}]}"),
    ("step", "next[]"): _step("tool: {kind: noop}, next: [{step: end}]"),
    ("step", "result"): _step(f"tool: {{{PYTHON}}}, result: {{as: found}}, next: {{arcs: [{{step: end}}]}}"),
    ("step", "bind"): _step(f"bind: {{a: 1}}, tool: {{{PYTHON}}}, next: {{arcs: [{{step: end}}]}}"),
    ("step", "sink"): _step(f"tool: {{{PYTHON}}}, sink: {_TABLE}, next: {{arcs: [{{step: end}}]}}"),
    ("step", "save"): _step(f"tool: {{{PYTHON}}}, save: {_TABLE}, next: {{arcs: [{{step: end}}]}}"),
    ("step", "type"): _step("type: python, code: 'result = 1', next: {arcs: [{step: end}]}"),
    ("step", "name"): "workbook:\n  b: {tool: {kind: noop}}\n"
    + _step("type: workbook, name: b, next: {arcs: [{step: end}]}"),
    ("step", "data"): _step(f"data: {{a: 1}}, tool: {{{PYTHON}}}, next: {{arcs: [{{step: end}}]}}"),
    ("step", "with"): _step(f"with: {{a: 1}}, tool: {{{PYTHON}}}, next: {{arcs: [{{step: end}}]}}"),
    ("block", "type"): _block("type: python, code: 'result = 1'"),
    ("block", "data"): _block(f"data: {{a: 1}}, tool: {{{PYTHON}}}"),
    ("block", "with"): _block(f"with: {{a: 1}}, tool: {{{PYTHON}}}"),
    ("block", "result"): _block(f"tool: {{{PYTHON}}}, result: {{as: found}}"),
    ("block", "sink"): _block(f"tool: {{{PYTHON}}}, sink: {_TABLE}"),
    ("block", "save"): _block(f"tool: {{{PYTHON}}}, save: {_TABLE}"),
    ("loop", "collection"): _step(_LOOP.replace("in:", "collection:") + "}"),
    ("loop", "element"): _step(_LOOP.replace("iterator:", "element:") + "}"),
    ("loop", "mode"): _step(_LOOP + ", mode: parallel}"),
    ("loop", "until"): _step(_LOOP + ", until: '{{ n == 2 }}'}"),
    ("task", "result"): _step(f"tool: {{{PYTHON}, result: {{as: found}}}}, next: {{arcs: [{{step: end}}]}}"),
    ("task", "sink"): _step(f"tool: {{{PYTHON}, sink: [{_TABLE}]}}, next: {{arcs: [{{step: end}}]}}"),
    ("task", "sinks"): _step(f"tool: {{{PYTHON}, sinks: [{_TABLE}]}}, next: {{arcs: [{{step: end}}]}}"),
    ("task", "save"): _step(f"tool: {{{PYTHON}, save: {_TABLE}}}, next: {{arcs: [{{step: end}}]}}"),
    ("task", "chunk"): _step(
        f"tool: {{{PYTHON}, chunk: {{size: 10}}, sink: [{_TABLE}]}}, next: {{arcs: [{{step: end}}]}}"
    ),
    ("task", "bind"): _step(f"tool: {{{PYTHON}, bind: {{a: 1}}}}, next: {{arcs: [{{step: end}}]}}"),
    ("task", "collect"): _step(
        f"loop: {{in: [1], iterator: n}}, tool: {{{PYTHON}, collect: {{into: all, mode: list}}}}, "
        "next: {arcs: [{step: end}]}"
    ),
    ("task", "pick"): _step(f"tool: {{{PYTHON}, pick: '{{ this.id }}', as: number}}, next: {{arcs: [{{step: end}}]}}"),
    ("task.spec", "<field>"): _step("tool: {kind: python, spec: {code: 'result = 1'}}, next: {arcs: [{step: end}]}"),
    ("template", "context"): _step(
        "tool: {kind: python, input: {a: '{{ context.workload.a | default(1) }}'}, code: 'result = 1'}", ""
    ),
}
PROMISED = [place for place, replaced in REJECTED.items() if RUNS in replaced.hint]


def _errors(text: str, legacy: bool = False) -> list[str]:
    return [
        f"{each.line}: {each.message} ({each.hint})"
        for each in noetl.validate(text, legacy=legacy)
        if each.severity == "error"
    ]


@pytest.mark.parametrize("place", PROMISED, ids=":".join)
def test_what_legacy_promises_to_run_is_valid_there_and_migrated(place: tuple[str, str]) -> None:
    text = HEAD + DOCUMENTS[place]
    codes = {each.code for each in noetl.validate(text) if each.severity == "error"}
    assert REJECTED[place].code in codes
    assert _errors(text, legacy=True) == []
    made = migrate(text, specs())
    assert made.text != text
    assert _errors(made.text) == [], made.text


@pytest.mark.parametrize(
    "place", [place for place in PROMISED if place[1] in ("sink", "sinks", "save", "pick", "collect")], ids=":".join
)
def test_it_runs_unchanged_and_migrated_with_the_same_effects(
    place: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = HEAD + DOCUMENTS[place]
    effects = []
    for written, legacy in ((text, True), (migrate(text, specs()).text, False)):
        folder = tmp_path / ("legacy" if legacy else "migrated")
        folder.mkdir()
        monkeypatch.setenv("NOETL_HOME", str(folder / "home"))
        file = folder / "hints.yaml"
        file.write_text(written)
        result = noetl.run(file, legacy=legacy)
        assert result.status == "success", result.error
        rows = [sqlite3.connect(found).execute("SELECT * FROM t").fetchall() for found in folder.rglob("x.db")]
        effects.append((result.ctx, rows))
    assert effects[0] == effects[1]
    assert effects[0] != ({}, [])
