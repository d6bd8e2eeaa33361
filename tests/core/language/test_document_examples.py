"""Every example of the five documents has a counterpart here with the same constructs.

The table maps document and section to a file and to its expected diagnostics: `clean` (none), `v10` (v10 warnings, and
errors under strict), `reserved` (reserved keys are reported), or `refused` (errors that name the replacement).
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from dsl_kinds import SPECS

from noetl.core.language.compile import compile_playbook

HERE = Path(__file__).parent

# (document, section, what it shows): (file, verdict)
TABLE: dict[tuple[str, str, str], tuple[str, str]] = {
    ("000", "1.4", "task policy with rules"): ("ok/v10_pipeline.yaml", "v10"),
    ("000", "2.1", "keychain"): ("ok/keychains.yaml", "clean"),
    ("000", "2.2", "executor with spec"): ("ok/reuse.yaml", "clean"),
    ("000", "2.A", "executor with profile and version"): ("ok/v10_pipeline.yaml", "v10"),
    ("000", "3.1", "labelled task list"): ("ok/v10_minimal.yaml", "v10"),
    ("000", "3.2", "router with spec and arcs"): ("ok/v10_pipeline.yaml", "v10"),
    ("000", "4.1", "merge order of specs"): ("ok/reuse.yaml", "clean"),
    ("000", "5.1", "admission rules"): ("ok/v10_pipeline.yaml", "v10"),
    ("000", "8", "loop with policy"): ("ok/v10_pipeline.yaml", "v10"),
    ("001", "2.1", "keychain"): ("ok/v10_pipeline.yaml", "v10"),
    ("001", "3.1", "merge order of specs"): ("ok/reuse.yaml", "clean"),
    ("001", "5.2.1", "admission with reserved mode"): ("ok/v10_pipeline.yaml", "reserved"),
    ("001", "5.4", "task policy with reserved hooks"): ("ok/v10_pipeline.yaml", "reserved"),
    ("001", "5.5", "router with reserved policy"): ("ok/v10_pipeline.yaml", "reserved"),
    ("001", "7.1", "named tasks"): ("ok/task_shapes.yaml", "clean"),
    ("001", "7.2", "unnamed tasks"): ("ok/task_shapes.yaml", "clean"),
    ("001", "7.3", "a single tool"): ("ok/task_shapes.yaml", "clean"),
    ("001", "7.4", "normalised tasks"): ("ok/task_shapes.yaml", "clean"),
    ("001", "12", "streaming pagination"): ("ok/v10_streaming.yaml", "v10"),
    ("002", "3.1", "keychain"): ("ok/keychains.yaml", "clean"),
    ("002", "6.3", "step schema"): ("ok/v10_pipeline.yaml", "v10"),
    ("002", "7", "admission"): ("ok/v10_pipeline.yaml", "v10"),
    ("002", "8.1", "loop"): ("ok/v10_pipeline.yaml", "v10"),
    ("002", "9.1", "ordered list of labelled tasks"): ("ok/v10_pipeline.yaml", "v10"),
    ("002", "12.1", "task policy"): ("ok/v10_streaming.yaml", "v10"),
    ("002", "13.1", "router with args and reserved spec"): ("ok/v10_pipeline.yaml", "v10"),
    ("002", "A", "minimal playbook"): ("ok/v10_minimal.yaml", "v10"),
    ("003", "3.3a", "single tool with input"): ("ok/task_shapes.yaml", "clean"),
    ("003", "3.3b", "composite tool"): ("ok/task_shapes.yaml", "clean"),
    ("003", "4.2", "chained items"): ("ok/chained_items.yaml", "clean"),
    ("003", "6.1", "flat set into three scopes"): ("ok/scopes_and_sets.yaml", "clean"),
    ("003", "6.3a", "step set"): ("ok/scopes_and_sets.yaml", "clean"),
    ("003", "6.3b", "arc set"): ("ok/references.yaml", "clean"),
    ("003", "7.2", "reference under a _ref name"): ("ok/references.yaml", "clean"),
    ("003", "7.3", "hydrated data"): ("ok/result_references.yaml", "clean"),
    ("003", "7.4", "shape of a reference"): ("ok/result_references.yaml", "clean"),
    ("003", "7.5", "resolve"): ("ok/references.yaml", "clean"),
    ("004", "1.1", "keys of a step"): ("err/older_step_keys.yaml", "refused"),
    ("004", "1.2a", "context in templates"): ("err/older_context.yaml", "refused"),
    ("004", "1.2b", "step and tool results"): ("err/older_context.yaml", "refused"),
    ("004", "2a", "loop with collection and element"): ("err/older_loop.yaml", "refused"),
    ("004", "2b", "loop example"): ("err/older_loop.yaml", "refused"),
    ("004", "3", "tool with result, chunk and sink"): ("err/older_tools.yaml", "refused"),
    ("004", "3.1a", "http"): ("err/older_tools.yaml", "refused"),
    ("004", "3.1b", "postgres"): ("err/older_tools.yaml", "refused"),
    ("004", "3.1c", "python with context"): ("err/older_context.yaml", "refused"),
    ("004", "3.1d", "transfer with sinks"): ("err/older_tools.yaml", "refused"),
    ("004", "3.1e", "playbook with args"): ("err/older_tools.yaml", "refused"),
    ("004", "4a", "chunk with two sinks"): ("err/older_chunks.yaml", "refused"),
    ("004", "4b", "chunk metadata in sink templates"): ("err/older_chunks.yaml", "refused"),
    ("004", "5", "sinks"): ("err/older_chunks.yaml", "refused"),
    ("004", "5.1a", "postgres and duckdb sinks"): ("err/older_chunks.yaml", "refused"),
    ("004", "5.1b", "s3 sink"): ("err/older_chunks.yaml", "refused"),
    ("004", "5.1c", "http sink"): ("err/older_chunks.yaml", "refused"),
    ("004", "5.2", "on_error of sinks"): ("err/older_chunks.yaml", "refused"),
    ("004", "6", "result at two levels"): ("err/older_results.yaml", "refused"),
    ("004", "6.1", "step result read by a loop"): ("err/older_results.yaml", "refused"),
    ("004", "6.2", "tool result in sinks"): ("err/older_tools.yaml", "refused"),
    ("004", "6.3", "both levels in a loop"): ("err/older_results.yaml", "refused"),
    ("004", "6.4", "loop results collected"): ("err/older_results.yaml", "refused"),
    ("004", "7.1", "http chunks to two sinks"): ("err/older_tools.yaml", "refused"),
    ("004", "7.2", "loop with chunks and a summary"): ("err/older_results.yaml", "refused"),
    ("004", "7.3", "transfer to three sinks"): ("err/older_tools.yaml", "refused"),
    ("004", "7.4", "parallel loop, then a gated step"): ("err/older_results.yaml", "refused"),
    ("004", "8.2", "loop and chunk"): ("err/older_chunks.yaml", "refused"),
    ("004", "8.3", "scope of results"): ("err/older_context.yaml", "refused"),
    ("004", "9.2a", "v1 step"): ("err/older_v1.yaml", "refused"),
    ("004", "9.2b", "the same in v2"): ("err/older_context.yaml", "refused"),
    ("004", "old 3a", "postgres under tool.spec"): ("err/older_tool_spec.yaml", "refused"),
    ("004", "old 3b", "python code under tool.spec"): ("err/older_tool_spec.yaml", "refused"),
    ("004", "old 3c", "python module under tool.spec"): ("err/older_tool_spec.yaml", "refused"),
    ("004", "old 3d", "duckdb under tool.spec"): ("err/older_tool_spec.yaml", "refused"),
    ("004", "old 4a", "next as a list"): ("err/older_routing.yaml", "refused"),
    ("004", "old 4b", "next with three guards"): ("err/older_routing.yaml", "refused"),
    ("004", "old 6.2", "status helpers in a gate"): ("err/older_join.yaml", "refused"),
    ("004", "old 8.1", "fan out and join"): ("err/older_join.yaml", "refused"),
    ("004", "old 8.2", "loop and reduce"): ("err/older_reduce.yaml", "refused"),
}
# Words that a document lists as rejected rather than showing them: 000 section 12, 002 section 16, 001 section 13.
REJECTED_WORDS = {
    "err/older_blocks.yaml": {"legacy-case", "legacy-retry", "legacy-sink", "legacy-next-mode", "legacy-eval", "root-vars"},
    "err/legacy-step-when.yaml": {"legacy-step-when"},
    "err/legacy-next-list.yaml": {"legacy-next-list"},
    "err/policy-shape.yaml": {"policy-shape"},
    "err/rule-without-do.yaml": {"rule-without-do"},
    "err/unknown-jump-target.yaml": {"unknown-jump-target"},
    "err/duplicate-task.yaml": {"duplicate-task"},
    "err/next-shape.yaml": {"next-shape"},
    "err/step-without-body.yaml": {"step-without-body"},
    "err/parallel-ctx-write.yaml": {"parallel-ctx-write"},
    "err/missing-else.yaml": {"missing-else"},
    "err/set-under-spec.yaml": {"set-under-spec"},
    "err/data-as-reference.yaml": {"data-as-reference"},
    "err/reference-as-data.yaml": {"reference-as-data"},
    "err/v10-outcome.yaml": {"v10-outcome"},
    "err/v10-args.yaml": {"v10-args"},
    "err/v10-result.yaml": {"v10-result"},
}  # fmt: skip
# Examples in the documents, counted there by hand. Not among them, since they are no playbooks: the outcome and the
# reference as JSON (000 5.2, 002 14), Python that reads a dictionary (004 1.2), the status namespace (004 old 6.1) and
# a drawing (004 8.1).
EXAMPLES = {"000": 9, "001": 10, "002": 8, "003": 10, "004": 40}


def codes(file: str, **options: bool) -> tuple[bool, set[str], set[str]]:
    result = compile_playbook((HERE / file).read_bytes(), file=file, specs=SPECS, **options)
    errors = {found.code for found in result.diagnostics if found.severity == "error"}
    return result.playbook is not None, errors, {found.code for found in result.diagnostics} - errors


def test_no_example_of_the_documents_is_missing():
    counted = {document: sum(1 for key in TABLE if key[0] == document) for document in EXAMPLES}
    assert counted == EXAMPLES


@pytest.mark.parametrize(("key", "entry"), TABLE.items(), ids=lambda value: "-".join(value))
def test_an_example_is_accepted_or_rejected_as_specified(key, entry):
    file, verdict = entry
    compiled, errors, warnings = codes(file)
    if verdict == "clean":
        assert compiled and not warnings
    elif verdict == "v10":
        assert compiled and any(code.startswith("v10-") for code in warnings)
        strictly, promoted, _ = codes(file, strict=True)
        assert not strictly and all(code.startswith("v10-") for code in promoted)
    elif verdict == "reserved":
        assert compiled and "reserved-word" in warnings
    else:
        assert verdict == "refused"
        assert not compiled and all(code.startswith("legacy-") for code in errors)


@pytest.mark.parametrize(
    ("file", "expected"), REJECTED_WORDS.items(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_what_the_documents_reject_or_warn_about_is_reported(file, expected):
    _, errors, warnings = codes(file)
    assert expected <= errors | warnings


# Words that no document describes any more run nowhere.
DRAFTS = ("legacy-case", "legacy-retry", "legacy-eval", "legacy-kind", "legacy-next-mode")


def test_every_rejected_2025_11_key_names_its_replacement_and_the_commands():
    for path in sorted((HERE / "err").glob("older_*.yaml")):
        for found in compile_playbook(path.read_bytes(), file=path.name, specs=SPECS).diagnostics:
            if found.code.startswith("legacy-"):
                assert "`" in found.hint.partition("; ")[0], found
                if found.code not in DRAFTS:
                    ways_out = found.hint.rpartition("; ")[2]
                    assert "noetl migrate" in ways_out and "--legacy" in ways_out, found


# What an entry says it shows, and what its file must have for that.
SHOWN = {
    "keychain": r"(?m)^keychain:",
    "executor": r"(?m)^executor:",
    "profile": r"profile:",
    "merge order": r"(?s)executor:.*spec:",
    "admission": r"admit:",
    "gate": r"when:",
    "loop": r"loop:",
    "router": r"arcs:",
    "arc set": r"(?s)arcs:.*set:",
    "task policy": r"rules:",
    "hooks": r"before|after|finally",
    "labelled": r"(?m)^\s*- \w+:\s*(\{.*)?$",
    "named tasks": r"name: ",
    "composite": r"(?s)tool:.*- .*- ",
    "single tool": r"tool:",
    "pagination": r"jump",
    "set into three scopes": r"(?s)ctx\..*(iter|step)\.",
    "step set": r"set:",
    "_ref": r"_ref: ",
    "shape of a reference": r"\.ref\b|_ref\b",
    "resolve": r"kind: resolve",
    "context": r"context\.",
    "collection and element": r"(?s)collection:.*element:|element:.*collection:",
    "result": r"result",
    "chunk": r"chunk",
    "sink": r"sink",
    "transfer": r"kind: transfer",
    "playbook": r"kind: (playbook|Playbook)",
    "http": r"http",
    "postgres": r"postgres",
    "duckdb": r"duckdb",
    "python": r"python",
    "s3": r"s3",
    "on_error": r"on_error",
    "under tool.spec": r"spec:",
    "v1": r"type:",
    "next as a list": r"(?s)next:\s*\n\s*- |next: \[",
    "guards": r"when:",
    "status helpers": r"(done|ok|fail)\(",
    "fan out": r"next:",
    "reduce": r"collect",
}  # fmt: skip


@pytest.mark.parametrize(("key", "entry"), TABLE.items(), ids=lambda value: "-".join(value))
def test_an_examples_counterpart_shows_what_the_table_says(key, entry):
    text = (HERE / entry[0]).read_text("utf-8")
    requested = [pattern for word, pattern in SHOWN.items() if word in key[2]]
    assert requested or key[2] in ("normalised tasks", "unnamed tasks", "keys of a step", "scope of results", "the same in v2",
                               "chained items", "hydrated data", "minimal playbook", "step schema", "ordered list of labelled tasks", "a single tool")  # fmt: skip
    assert [pattern for pattern in requested if not re.search(pattern, text)] == []
