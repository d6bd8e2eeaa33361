"""Every diagnostic code: how grave it is, what it means in a line, and why it is told.

The reference pages (`docs/reference/diagnostics/`) and a test that counts them are made from this list.
A code is for ever: scripts and `# noetl: ignore[code]` comments hold on to it.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Severity = Literal["error", "warning"]


class Code(NamedTuple):
    """What a diagnostic code stands for."""

    name: str
    severity: Severity
    title: str
    why: str = ""


CODES: dict[str, Code] = {}


def _codes(severity: Severity, *entries: tuple[str, str, str]) -> None:
    for name, title, why in entries:
        CODES[name] = Code(name, severity, title, why)


_codes(
    "error",
    ("yaml-syntax", "The text is not valid YAML", ""),
    ("yaml-encoding", "The file has bytes or characters that cannot stand in a playbook", ""),
    ("yaml-duplicate-key", "A key stands twice in one mapping", ""),
    ("yaml-key", "A key is missing or is no plain text", ""),
    ("yaml-tag", "A YAML tag has no meaning here", ""),
    ("yaml-alias", "An alias has no anchor", ""),
    ("yaml-merge", "A merge key does not take this", ""),
    ("yaml-number", "A number cannot be kept", ""),
    ("yaml-limit", "The text is too large, too deep, or grows too much by aliases", ""),
    ("yaml-documents", "The file has more than one document", ""),
    ("yaml-empty", "The file has no content", ""),
    ("not-a-playbook", "The document is not a mapping", ""),
    ("unknown-key", "A key that the language does not have here", ""),
    ("missing-key", "A key that must be there is missing", ""),
    ("wrong-type", "A value has the wrong type", ""),
    ("wrong-value", "A value is not one of those allowed", ""),
    ("root-vars", "Root `vars` does not exist", ""),
    ("bad-name", "A name cannot be used as one", ""),
    ("reserved-name", "A name has a meaning of its own", ""),
    ("duplicate-step", "Two steps have the same name", ""),
    ("duplicate-task", "Two tasks of a pipeline have the same name", ""),
    ("duplicate-block", "Two workbook blocks have the same name", ""),
    ("duplicate-keychain", "Two keychain entries have the same name", ""),
    ("empty-workflow", "The workflow has no steps", ""),
    ("unknown-step", "A step that does not exist is named", ""),
    ("unknown-block", "A workbook block that does not exist is called", ""),
    ("unknown-jump-target", "A jump to a task that does not exist", ""),
    ("jump-without-target", "A jump without a target", ""),
    ("next-shape", "`next` is not a mapping with arcs", ""),
    ("policy-shape", "A task's policy is not a mapping with rules", ""),
    ("rule-shape", "A rule has neither or both of `when` and `else`", ""),
    ("rule-without-do", "A rule has no `then: {do: ...}`", ""),
    ("control-outside-task", "Task rules stand where no task is", ""),
    ("set-target", "A target that cannot be set", ""),
    ("set-read-only", "A scope that cannot be written", ""),
    ("set-twice", "A target is set twice in one block", ""),
    ("set-under-spec", "`set` stands under `spec`", ""),
    ("loop-collection", "A loop goes over something that is no collection", ""),
    ("unknown-kind", "There is no such tool kind", ""),
    ("missing-parameter", "A tool lacks a parameter it needs", ""),
    ("unknown-keychain-kind", "There is no such keychain kind", ""),
    ("legacy-step-when", "`when` on a step", ""),
    ("legacy-next-list", "`next` as a list", ""),
)
_codes(
    "warning",
    ("dashed-name", "A name with a dash", ""),
    ("reserved-word", "A word that is reserved and has no effect", ""),
    ("step-without-body", "A step with neither `tool` nor `next`", ""),
    ("flat-else", "`else` without its own `then`", ""),
    ("set-without-scope", "A target without a scope", ""),
    ("parameter-twice", "A parameter is given twice", ""),
    ("parameter-type", "A parameter has a value its kind cannot take", ""),
    ("unknown-parameter", "A parameter that the kind does not have", ""),
    ("unknown-keychain-field", "A field that the keychain kind does not have", ""),
    ("plugin-kind", "A kind of a plug-in that is not installed", ""),
    ("workbook-name", "A block called by `name`", ""),
    ("old-spelling", "Another spelling of a canonical word", ""),
    ("static-secret", "A secret in the playbook's text", ""),
    ("unused-ignore", "A comment that silences nothing", ""),
    ("v10-args", "`args` is v10", ""),
    ("v10-arc-args", "`args` of an arc is v10", ""),
    ("v10-set-ctx", "`set_ctx` is v10", ""),
    ("v10-set-iter", "`set_iter` is v10", ""),
    ("v10-labelled-task", "A task under its label is v10", ""),
)
