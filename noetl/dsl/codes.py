"""Every diagnostic code: how grave it is, and what it means in a line.

A code is for ever: scripts and `# noetl: ignore[code]` comments hold on to it. Each has a page of its own in
`docs/reference/diagnostics/` that says why it is told, with a wrong and a right example.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Severity = Literal["error", "warning"]


class Code(NamedTuple):
    """What a diagnostic code stands for."""

    name: str
    severity: Severity
    title: str


_ERRORS = {
    "yaml-syntax": "The text is not valid YAML",
    "yaml-encoding": "The file has bytes or characters that cannot stand in a playbook",
    "yaml-duplicate-key": "A key stands twice in one mapping",
    "yaml-key": "A key is missing or is no plain text",
    "yaml-tag": "A YAML tag has no meaning here",
    "yaml-alias": "An alias has no anchor",
    "yaml-merge": "A merge key does not take this",
    "yaml-number": "A number cannot be kept",
    "yaml-limit": "The text is too large, too deep, or grows too much by aliases",
    "yaml-documents": "The file has more than one document",
    "yaml-empty": "The file has no content",
    "not-a-playbook": "The document is not a mapping",
    "unknown-key": "A key that the language does not have here",
    "missing-key": "A key that must be there is missing",
    "wrong-type": "A value has the wrong type",
    "wrong-value": "A value is not one of those allowed",
    "root-vars": "Root `vars` does not exist",
    "bad-name": "A name cannot be used as one",
    "reserved-name": "A name has a meaning of its own",
    "duplicate-step": "Two steps have the same name",
    "duplicate-task": "Two tasks of a pipeline have the same name",
    "duplicate-block": "Two workbook blocks have the same name",
    "duplicate-keychain": "Two keychain entries have the same name",
    "empty-workflow": "The workflow has no steps",
    "unknown-step": "A step that does not exist is named",
    "unknown-block": "A workbook block that does not exist is called",
    "unknown-jump-target": "A jump to a task that does not exist",
    "jump-without-target": "A jump without a target",
    "next-shape": "`next` is not a mapping with arcs",
    "policy-shape": "A task's policy is not a mapping with rules",
    "rule-shape": "A rule has neither or both of `when` and `else`",
    "rule-without-do": "A rule has no `then: {do: ...}`",
    "control-outside-task": "Task rules stand where no task is",
    "skip-reads-output": "`skip` asks about an output that does not exist yet",
    "skip-under-else": "`skip` without a guard",
    "set-target": "A target that cannot be set",
    "set-read-only": "A scope that cannot be written",
    "set-twice": "A target is set twice in one block",
    "set-under-spec": "`set` stands under `spec`",
    "loop-collection": "A loop goes over something that is no collection",
    "until-in-parallel": "`until` on a parallel loop",
    "unknown-reducer": "There is no such reducer",
    "reduce-target": "A reducer for something that is not in `ctx`",
    "arc-conflict": "Arcs taken together set a key to different values",
    "unknown-kind": "There is no such tool kind",
    "missing-parameter": "A tool lacks a parameter it needs",
    "unknown-keychain-kind": "There is no such keychain kind",
    "unknown-keychain": "A secret that is not declared",
    "keychain-on-server": "A secret in a template that the server evaluates",
    "keychain-in-set": "A secret in an assignment",
    "env-read": "The process environment in a template",
    "template-syntax": "A template that cannot be read",
    "unknown-filter": "There is no such filter",
    "unknown-test": "There is no such test",
    "unknown-function": "There is no such function",
    "name-not-visible": "A scope that does not exist at this place",
    "reference-as-data": "A reference under a name of data",
    "data-as-reference": "Data under a name of a reference",
    "reference-field": "A payload field read from a reference",
    "legacy-step-when": "`when` on a step",
    "legacy-next-list": "`next` as a list",
    "legacy-result": "`result` of a step or tool",
    "legacy-bind": "`bind` of a step",
    "legacy-loop": "A loop in the words of 2025-11",
    "legacy-sink": "`sink` and `save`",
    "legacy-chunk": "`chunk` of a tool",
    "legacy-tool-spec": "A tool's parameters under `spec`",
    "legacy-context": "`context.*` in a template",
    "legacy-step-type": "A step in the words of v1",
    "legacy-case": "`case` of a step",
    "legacy-retry": "`retry` of a step",
    "legacy-eval": "`eval` and `expr`",
    "legacy-next-mode": "`next_mode` under a step's spec",
    "legacy-kind": "A kind that is no tool any more",
}
_WARNINGS = {
    "dashed-name": "A name with a dash",
    "shadowed-name": "A name that templates cannot read",
    "step-without-body": "A step with neither `tool` nor `next`",
    "flat-else": "`else` without its own `then`",
    "unreachable-rule": "A rule that is never looked at",
    "missing-else": "An error that no rule matches goes on in silence",
    "unused-field": "A field that has no effect here",
    "set-without-scope": "A target without a scope",
    "parallel-ctx-write": "Parallel iterations write one key of `ctx`",
    "iter-outside-loop": "`iter` in a step without a loop",
    "plugin-kind": "A kind of a plug-in that is not installed",
    "unknown-parameter": "A parameter that the kind does not have",
    "parameter-twice": "A parameter is given twice",
    "parameter-type": "A parameter has a value its kind cannot take",
    "unknown-spec-key": "A spec key that nothing looks at",
    "workbook-name": "A block called by `name`",
    "old-spelling": "Another spelling of a canonical word",
    "reserved-word": "A word that is reserved and has no effect",
    "unknown-keychain-field": "A field that the keychain kind does not have",
    "static-secret": "A secret in the playbook's text",
    "guard-without-template": "A guard that is plain text",
    "template-in-key": "A template in a key",
    "template-in-code": "A template in code",
    "bare-name": "A name without its scope",
    "unknown-name": "A name that nothing defines",
    "never-set": "A value that nothing sets",
    "workload-cycle": "Workload defaults that need each other",
    "workload-without-default": "Input that must come with the request",
    "foreign-helper": "A helper of another kind",
    "unused-ignore": "A comment that silences nothing",
    "too-many-problems": "More problems than are listed",
    "v10-args": "`args` is v10",
    "v10-arc-args": "`args` of an arc is v10",
    "v10-set-ctx": "`set_ctx` is v10",
    "v10-set-iter": "`set_iter` is v10",
    "v10-labelled-task": "A task under its label is v10",
    "v10-outcome": "`outcome` is v10",
    "v10-result": "`output.result` is v10",
}

CODES: dict[str, Code] = {
    **{name: Code(name, "error", title) for name, title in _ERRORS.items()},
    **{name: Code(name, "warning", title) for name, title in _WARNINGS.items()},
}
