"""Every 2025-11 construct is rejected with its replacement, and runs and migrates with the extension."""

from __future__ import annotations

from textwrap import indent

import pytest

from noetl.core.language.compile import compile_playbook
from noetl.core.language.dialects.v2025_11.rejected_keys import REJECTED
from noetl.core.language.rewrite.migrate.v2025_11_to_canonical import migrate
from noetl.tools import registry as tools

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\nworkload: {items: [1], api: x}\n"
END = "  - {step: z, tool: {kind: noop}}\n"


def book(step: str, *, before: str = "") -> str:
    return f"{HEAD}{before}workflow:\n  - step: a\n{indent(step, '    ')}\n{END}"


def sink(body: str) -> str:
    return f"tool:\n  kind: python\n  code: result = []\n  sink:\n    - {body}"


# construct -> (text, code, a word of the replacement)
CONSTRUCTS = {
    "step when": (book('when: "{{ true }}"\ntool: {kind: noop}'), "legacy-step-when", "admit"),
    "next list": (book("tool: {kind: noop}\nnext:\n  - step: z"), "legacy-next-list", "arcs"),
    "next list with guards": (
        book('tool: {kind: noop}\nnext:\n  - {when: "{{ false }}", step: z}\n  - step: z'), "legacy-next-list", "arcs",
    ),
    "next of names": (book("tool: {kind: noop}\nnext: [z]"), "legacy-next-list", "arcs"),
    "step result": (book("result: x\ntool: {kind: noop}"), "legacy-result", "set"),
    "step bind": (book('bind: {x: "{{ 1 }}"}\ntool: {kind: noop}'), "legacy-bind", "input"),
    "bind of a result": (book('bind: {x: {path: result.data}}\ntool: {kind: noop}'), "legacy-bind", "set"),
    "loop collection": (book('loop: {collection: "{{ workload.items }}", iterator: i}\ntool: {kind: noop}'), "legacy-loop", "`in`"),
    "loop element": (book('loop: {in: "{{ workload.items }}", element: i}\ntool: {kind: noop}'), "legacy-loop", "`iterator`"),
    "loop mode": (book('loop: {in: "{{ workload.items }}", iterator: i, mode: parallel}\ntool: {kind: noop}'), "legacy-loop", "spec"),
    "loop until": (book('loop: {in: "{{ workload.items }}", iterator: i, until: "{{ true }}"}\ntool: {kind: noop}'), "legacy-loop", "spec"),
    "tool result": (book("tool: {kind: noop, result: x}"), "legacy-result", "name"),
    "result as": (book("tool: {kind: noop, result: {as: x}}"), "legacy-result", "set"),
    "result pick": (book('tool: {kind: noop, result: {pick: "{{ this }}", as: x}}'), "legacy-result", "set"),
    "result collect": (
        book('loop: {in: "{{ workload.items }}", iterator: i}\ntool: {kind: noop, result: {collect: {into: x, mode: list}}}'),
        "legacy-result", "set",
    ),
    "result sink": (
        book("tool: {kind: python, code: 'result = []', result: {as: x, sink: [{postgres: {table: t}}]}}"), "legacy-result", "set",
    ),
    "step result block": (
        book("result: {pick: '{{ this }}', as: x, sink: [{http: {url: 'http://x'}}]}\ntool: {kind: noop}"), "legacy-result", "set",
    ),
    "tool.spec fields": (book('tool: {kind: http, spec: {method: GET, endpoint: "{{ workload.api }}"}}'), "legacy-tool-spec", "beside `kind`"),
    "sink postgres": (book(sink("{kind: postgres, auth: x, table: t, mode: upsert, key: id}")), "legacy-sink", "transfer"),
    "sink duckdb": (book(sink("{kind: duckdb, file: x, table: t, mode: append}")), "legacy-sink", "transfer"),
    "sink s3": (book(sink("{kind: s3, auth: x, path: b/x.csv, format: csv}")), "legacy-sink", "object"),
    "sink http": (book(sink('{kind: http, url: "http://x", body: "{{ this }}"}')), "legacy-sink", "http"),
    "sink with on_error": (book(sink("{kind: s3, path: b/x.parquet, on_error: warn}")), "legacy-sink", "transfer"),
    "sink with mapping": (book(sink('{kind: postgres, auth: x, table: t, mapping: {a: "{{ this.b }}"}}')), "legacy-sink", "transfer"),
    "sink with args": (book(sink('{kind: postgres, auth: x, table: t, args: {a: "{{ this }}", b: 1}}')), "legacy-sink", "transfer"),
    "chunk": (
        book("tool:\n  kind: postgres\n  auth: x\n  query: SELECT 1\n  chunk: {size: 10, mode: stream}\n  sink: [{kind: duckdb, file: f, table: t}]"),
        "legacy-chunk", "chunk: {size: ...}",
    ),
    "context in a template": (book('tool: {kind: noop, input: {x: "{{ context.workload.api }}"}}'), "legacy-context", "migrate"),
    "v1 step type": (book("type: python\ncode: result = 1"), "legacy-step-type", "kind"),
    "v1 data": (book("type: workbook\nname: b\ndata: {x: 1}", before="workbook: {b: {kind: noop}}\n"), "legacy-step-type", "input"),
    "v1 save": (book("type: python\ncode: result = []\nsave: {storage: postgres, auth: x, table: t}"), "legacy-sink", "transfer"),
}  # fmt: skip


@pytest.mark.parametrize("construct", CONSTRUCTS)
def test_2025_11_syntax_is_rejected_with_its_replacement(construct):
    text, code, replacement = CONSTRUCTS[construct]
    compiled = compile_playbook(text, file="p", specs=tools.specs())
    assert compiled.playbook is None
    found = [one for one in compiled.diagnostics if one.code == code]
    assert found, compiled.diagnostics
    assert any(replacement in one.hint for one in found), found
    assert all("noetl migrate" in one.hint and "--legacy" in one.hint for one in found)
    assert all(one.line > 4 for one in found)


@pytest.mark.parametrize("construct", CONSTRUCTS)
def test_with_the_extension_it_compiles_and_so_does_its_migrated_form(construct):
    text = CONSTRUCTS[construct][0]
    compiled = compile_playbook(text, file="p", specs=tools.specs(), legacy=True)
    assert compiled.playbook is not None, compiled.diagnostics
    made = migrate(text, tools.specs())
    assert made.notes == ()
    assert compile_playbook(made.text, file="p", specs=tools.specs(), strict=True).playbook is not None, made.text


# Words of drafts that no document describes any more.
DRAFTS = {
    "step case": (book("tool: {kind: noop}\ncase: []"), "legacy-case"),
    "step retry": (book("tool: {kind: noop}\nretry: {max_attempts: 3}"), "legacy-retry"),
    "step eval": (book("tool: {kind: noop}\neval: []"), "legacy-eval"),
    "task eval": (book("tool: {kind: noop, eval: []}"), "legacy-eval"),
    "arc expr": (book('tool: {kind: noop}\nnext: {arcs: [{step: z, expr: "{{ true }}"}]}'), "legacy-eval"),
    "next_mode": (book("spec: {next_mode: inclusive}\ntool: {kind: noop}"), "legacy-next-mode"),
    "kind iterator": (book("tool: {kind: iterator}"), "legacy-kind"),
}


@pytest.mark.parametrize("extension", [False, True])
@pytest.mark.parametrize("construct", DRAFTS)
def test_keys_of_drafts_are_rejected_with_and_without_the_extension(construct, extension):
    text, code = DRAFTS[construct]
    compiled = compile_playbook(text, file="p", specs=tools.specs(), legacy=extension)
    assert compiled.playbook is None
    (found,) = [one for one in compiled.diagnostics if one.code == code]
    assert found.hint
    assert "--legacy" not in found.hint


def test_a_chunk_has_one_of_two_modes():
    text = book(
        "tool: {kind: postgres, auth: x, query: SELECT 1, chunk: {size: 1, mode: fast}, sink: [{kind: duckdb, file: f, table: t}]}"
    )
    compiled = compile_playbook(text, file="p", specs=tools.specs(), legacy=True)
    assert compiled.playbook is None
    assert "`batch` or `stream`" in compiled.diagnostics[0].message


def test_a_chunk_without_a_sink_is_noted_at_its_line():
    made = migrate(book("tool:\n  kind: noop\n  chunk: {size: 1}"), tools.specs())
    assert [note.line for note in made.notes] == [9]
    assert "# noetl migrate: `chunk` without a `sink`" in made.text


def test_the_table_names_all_codes_of_the_dialect():
    codes = {word.code for word in REJECTED.values()}
    reported = {each[1] for each in CONSTRUCTS.values()} | {each[1] for each in DRAFTS.values()}
    assert codes == reported
