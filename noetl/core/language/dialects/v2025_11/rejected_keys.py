"""Keys of the 2025-11 dialect. Without the legacy extension each is reported with its replacement."""

from __future__ import annotations

from noetl.core.language.source.node_reader import ReplacedKey

RUNS = "`noetl migrate` rewrites it, `--legacy` runs it unchanged"


def _replaced(code: str, message: str, instead: str, means: str = "") -> ReplacedKey:
    return ReplacedKey(code, message, f"{instead}; {RUNS}", means)


def _removed(code: str, message: str, instead: str, means: str = "") -> ReplacedKey:
    """A key that the legacy extension does not support either."""
    return ReplacedKey(code, message, instead, means)


_RESULT = 'read the step by its name (`{{ fetch.id }}`), or `set: {ctx.<name>: "{{ output.data }}"}`'
_SINK = (
    "store the data with a task of `kind: transfer` (`data: ...`, `targets: [{kind, table|path|url, mode}]`), "
    "or of `kind: postgres`, `duckdb`, `object`, `http`"
)

# (shape of the grammar, key) -> its diagnostic. `<field>` is any parameter of the tool.
REJECTED: dict[tuple[str, str], ReplacedKey] = {
    ("step", "when"): _replaced(
        "legacy-step-when",
        "a step has no `when`",
        "write `spec: {policy: {admit: {rules: [{when: ..., then: {allow: true}}]}}}`",
    ),
    ("step", "next[]"): _replaced(
        "legacy-next-list",
        "`next` must be a mapping with `arcs`, not a list",
        "write `next: {arcs: [{step: ..., when: ...}]}`",
    ),
    ("step", "result"): _replaced("legacy-result", "a step has no `result`", _RESULT),
    ("step", "bind"): _replaced(
        "legacy-bind", "a step has no `bind`", "write `input` for its tasks, or `set: {ctx.<name>: ...}`"
    ),
    ("step", "case"): _removed(
        "legacy-case", "a step has no `case`", "write guarded arcs: `next: {arcs: [{step: ..., when: ...}]}`"
    ),
    ("step", "retry"): _removed(
        "legacy-retry",
        "a step has no `retry`",
        "write a rule of the task: `spec: {policy: {rules: [{when: ..., then: {do: retry, attempts: 3}}]}}`",
    ),
    ("step", "sink"): _replaced("legacy-sink", "a step has no `sink`", _SINK),
    ("step", "save"): _replaced("legacy-sink", "a step has no `save`", _SINK),
    ("step", "type"): _replaced("legacy-step-type", "a step has no `type`", "write `tool: {kind: ...}`"),
    ("step", "name"): _replaced(
        "legacy-step-type", "a step has no `name` beside `step`", "write `tool: {kind: workbook, block: ...}`"
    ),
    ("step", "data"): _replaced("legacy-step-type", "a step has no `data`", "write `input`", "input"),
    ("step", "with"): _replaced("legacy-step-type", "a step has no `with`", "write `input`", "input"),
    ("step", "iterator"): _removed("legacy-loop", "a step has no `iterator`", "write `loop: {in: ..., iterator: ...}`"),
    ("step", "expr"): _removed("legacy-eval", "`expr` is not a valid key", "write `when`"),
    ("step", "eval"): _removed("legacy-eval", "`eval` is not a valid key", "write the task's `spec.policy.rules`"),
    ("block", "type"): _replaced("legacy-step-type", "a block has no `type`", "write `tool: {kind: ...}`", "tool"),
    ("block", "data"): _replaced("legacy-step-type", "a block has no `data`", "write `input`", "input"),
    ("block", "with"): _replaced("legacy-step-type", "a block has no `with`", "write `input`", "input"),
    ("block", "when"): _removed("legacy-step-when", "a block has no `when`", "guard the call with `choose`"),
    ("block", "result"): _replaced("legacy-result", "a block has no `result`", "the caller reads the task by its name"),
    ("block", "sink"): _replaced("legacy-sink", "a block has no `sink`", _SINK),
    ("block", "save"): _replaced("legacy-sink", "a block has no `save`", _SINK),
    ("step.spec", "next_mode"): _removed(
        "legacy-next-mode", "`next_mode` is not valid under `spec`", "write `next: {spec: {mode: ...}}`"
    ),
    ("loop", "collection"): _replaced("legacy-loop", "a loop has no `collection`", "write `in`", "in"),
    ("loop", "element"): _replaced(
        "legacy-loop", "a loop has no `element`", "write `iterator`, and read `iter.<name>`", "iterator"
    ),
    ("loop", "mode"): _replaced("legacy-loop", "`mode` is not valid beside `in`", "write `loop: {spec: {mode: ...}}`"),
    ("loop", "until"): _replaced(
        "legacy-loop", "`until` is not valid beside `in`", "write `loop: {spec: {until: ...}}`"
    ),
    ("task", "result"): _replaced("legacy-result", "a task has no `result`", _RESULT),
    ("task", "sink"): _replaced("legacy-sink", "a task has no `sink`", _SINK),
    ("task", "sinks"): _replaced("legacy-sink", "a task has no `sinks`", _SINK),
    ("task", "save"): _replaced("legacy-sink", "a task has no `save`", _SINK),
    ("task", "chunk"): _replaced(
        "legacy-chunk", "a task has no `chunk`", "write `kind: transfer` with `chunk: {size: ...}`"
    ),
    ("task", "bind"): _replaced("legacy-bind", "a task has no `bind`", "write `input`"),
    ("task", "collect"): _replaced(
        "legacy-result", "a task has no `collect`", "a loop step's `output.data` is the list of its outputs"
    ),
    ("task", "pick"): _replaced(
        "legacy-result", "a task has no `pick`", 'write `set: {ctx.<name>: "{{ output.data... }}"}`'
    ),
    ("task", "eval"): _removed("legacy-eval", "`eval` is not a valid key", "write `spec: {policy: {rules: [...]}}`"),
    ("task", "expr"): _removed("legacy-eval", "`expr` is not a valid key", "write `when`"),
    ("task.spec", "<field>"): _replaced(
        "legacy-tool-spec",
        "a tool's parameters are not valid under `spec`",
        "write them beside `kind`, or under `input`",
    ),
    ("task.spec", "eval"): _removed("legacy-eval", "`eval` is not a valid key", "write `policy: {rules: [...]}`"),
    ("task.rule", "expr"): _removed("legacy-eval", "`expr` is not a valid key", "write `when`", "when"),
    ("task.rule", "if"): _removed("legacy-eval", "`if` is not a valid key", "write `when`", "when"),
    ("admit.rule", "expr"): _removed("legacy-eval", "`expr` is not a valid key", "write `when`", "when"),
    ("arc", "expr"): _removed("legacy-eval", "`expr` is not a valid key", "write `when`", "when"),
    ("arc", "condition"): _removed("legacy-eval", "`condition` is not a valid key", "write `when`", "when"),
    ("choose.branch", "expr"): _removed("legacy-eval", "`expr` is not a valid key", "write `when`", "when"),
    ("kind", "iterator"): _removed(
        "legacy-kind", "iteration is not a tool kind", "write `loop: {in: ..., iterator: ...}` on the step"
    ),
    ("kind", "loop"): _removed(
        "legacy-kind", "a loop is not a tool kind", "write `loop: {in: ..., iterator: ...}` on the step"
    ),
    ("kind", "sink"): _removed("legacy-kind", "storing is not a tool kind", _SINK),
    ("kind", "save"): _removed("legacy-kind", "storing is not a tool kind", _SINK),
    ("template", "context"): ReplacedKey("legacy-context", "templates have no `context`", RUNS),
}
