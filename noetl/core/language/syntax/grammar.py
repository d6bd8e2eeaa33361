"""The grammar of a playbook, defined once.

A `Shape` is a mapping with named keys. The reader checks documents against the shapes; the JSON Schema, the reference
pages and completion are generated from the same tables. `lower.py` implements the meaning of the keys; the dialects
list rejected keys with their replacements.

States of a key: `canonical` is what the formatter and the documentation use; `v10` runs with a warning that names the
canonical key; `accepted` is an alternative spelling; `reserved` is accepted and ignored with a warning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from noetl.core.model.outcome import ERROR_KINDS

Type = Literal[
    "any",  # any data, templates inside
    "text",  # a scalar, read as text
    "name",  # a name: an identifier, dashes with a warning
    "template",  # a guard or expression: text, boolean or number
    "boolean",
    "count",  # a whole number, at least `least`, or a template
    "number",  # a number, at least `least`, or a template
    "mapping",
    "list",
    "shape",  # a mapping of `shape`
    "shapes",  # a list of mappings of `shape`
    "texts",  # a list of texts, or one text
    "tasks",  # a list of tasks, or one task
    "set",  # assignments: `scope.name: value`
    "blocks",  # workbook blocks: a mapping, or a list of named ones
    "else",  # `{then: ...}` of the rule around it, which is of `shape`
]
# Names of the types in messages and on the reference page.
TYPE_NAMES: dict[str, str] = {
    "any": "any data",
    "text": "text",
    "name": "a name",
    "template": "a template, true or false",
    "boolean": "true or false",
    "count": "a whole number",
    "number": "a number",
    "mapping": "a mapping",
    "list": "a list",
    "texts": "a list of texts",
    "tasks": "tasks: a list, or one",
    "set": "assignments",
    "blocks": "blocks by name",
    "else": "`{then: ...}`",
}
State = Literal["canonical", "v10", "accepted", "reserved"]


class Key(Struct, frozen=True):
    """One key of a shape."""

    type: Type = "any"
    doc: str = ""
    required: bool = False
    shape: str = ""
    choices: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    templated: bool = True  # a number may be given as a template
    state: State = "canonical"
    instead: str = ""  # the canonical key, if this one is v10 or accepted


class Shape(Struct, frozen=True):
    """A mapping with named keys.

    An `open` shape allows other keys (the parameters of a tool); in a `lenient` one other keys are a warning (specs and
    policies).
    """

    name: str
    title: str
    doc: str
    keys: Mapping[str, Key]
    open: bool = False
    noun: str = ""
    lenient: bool = False


SCOPES = ("ctx", "step", "iter", "state")
STATE_COMMITS = ("execution", "step")
READ_ONLY_SCOPES = ("workload", "input", "output", "keychain", "event", "args", "steps", "execution_id")
DIRECTIVES = ("continue", "skip", "retry", "jump", "break", "fail")
BACKOFFS = ("none", "linear", "exponential")
ON_UNMATCHED = ("continue", "fail")
REDUCERS = ("sum", "min", "max", "count", "append", "extend", "merge", "any", "all", "last")
ITERATION_NAMES = ("index", "count", "first", "last", "parent")
EXTENSIONS = ("legacy",)

SHAPES: dict[str, Shape] = {}


def _shape(
    name: str, title: str, doc: str, keys: dict[str, Key], *, open: bool = False, noun: str = "", lenient: bool = False
) -> None:
    SHAPES[name] = Shape(name, title, doc, keys, open, noun or title.lower(), lenient)


_shape(
    "playbook",
    "Playbook",
    "The document: one YAML mapping.",
    {
        "apiVersion": Key("text", "The version of the language.", required=True, choices=("noetl.io/v2",)),
        "kind": Key("text", "The document type.", required=True, choices=("Playbook",)),
        "metadata": Key("shape", "Name, catalog path and description.", required=True, shape="metadata"),
        "keychain": Key("shapes", "Secrets the playbook needs; resolved before it starts.", shape="keychain"),
        "executor": Key("shape", "Placement and runtime defaults.", shape="executor"),
        "workload": Key("mapping", "Input with its defaults; the request's payload is merged over it."),
        "workflow": Key("shapes", "The steps.", required=True, shape="step"),
        "workbook": Key("blocks", "Reusable blocks by name (a mapping, or a list of named blocks)."),
    },
    noun="playbook",
)
_shape(
    "metadata",
    "Metadata",
    "Name, catalog path and description of the playbook.",
    {
        "name": Key("text", "The playbook's name.", required=True),
        "path": Key("text", "Its key in the catalog; default: the name."),
        "version": Key("text", "The author's version."),
        "description": Key("text", "What it is for."),
        "desc": Key("text", "Short for `description`.", state="accepted", instead="description"),
        "labels": Key("mapping", "Free labels."),
        "tags": Key("any", "Free tags."),
        "owner": Key("text", "The responsible person or team."),
    },
    open=True,
    noun="metadata block",
)
_shape(
    "keychain",
    "Keychain entry",
    "One declared secret; templates read it as `keychain.<name>` on the worker.",
    {
        "name": Key("name", "The name used in templates and in `auth:`.", required=True),
        "kind": Key("text", "The source of the secret.", required=True),
    },
    open=True,
)
_shape(
    "executor",
    "Executor",
    "Where and how the playbook runs.",
    {
        "profile": Key("text", "Placement.", choices=("local", "distributed", "auto")),
        "version": Key("text", "The runtime this playbook was written for."),
        "spec": Key("shape", "Defaults for every step and task.", shape="executor.spec"),
        "requires": Key("any", "", state="reserved"),
    },
)
_shape(
    "executor.spec",
    "Executor spec",
    "Defaults that steps, loops and tasks may override. A map named after a kind holds defaults for that kind.",
    {
        "entry_step": Key("text", "The first step to run; default: `start`, else the first one."),
        "return_step": Key("text", "The step whose output is the execution's."),
        "extensions": Key("texts", "Language extensions.", choices=EXTENSIONS),
        "timeout": Key("any", "Seconds, or `{connect, read, total}`."),
        "max_task_runs": Key("count", "Most task runs of one pipeline run.", least=1, templated=False),
        "result": Key("mapping", "Where results are stored: `store: {kind, ...}`."),
        "pool": Key("text", "The worker pool that runs the steps."),
        "placement": Key("shape", "Which workers may run the steps.", shape="placement"),
        "cost": Key("count", "Slots of its worker that a run occupies (1).", least=1, templated=False),
        "tracing": Key("shape", "Traces of the executions.", shape="tracing"),
        "policy": Key("shape", "Limits and defaults.", shape="executor.policy"),
        "state": Key("shape", "The state that executions of this playbook share.", shape="executor.state"),
    },
    open=True,
)
_shape(
    "tracing",
    "Tracing",
    "OpenTelemetry traces of the executions of this playbook. The setting `traces` says where spans are exported to.",
    {
        "enabled": Key(
            "boolean", "`false` exports no spans; `true` adds trace ids to outcomes even if nothing is exported."
        ),
        "sample": Key("number", "Share of the executions that are traced (1).", least=0, most=1, templated=False),
        "attributes": Key("mapping", "Attributes of every span; templates read `workload` and `execution_id`."),
    },
    noun="tracing block",
    lenient=True,
)
_shape(
    "executor.state",
    "State",
    "How writes to `state.*` are committed.",
    {
        "commit": Key(
            "text",
            "With the execution, if it succeeds (the default), or with every step that succeeds.",
            choices=STATE_COMMITS,
        ),
    },
    noun="state block",
)
_shape(
    "executor.policy",
    "Executor policy",
    "Bounds of an execution, and defaults.",
    {
        "limits": Key("shape", "Bounds of an execution.", shape="limits"),
        "defaults": Key("mapping", "Spec defaults for every task."),
        "placement": Key("shape", "Which workers may run the steps.", shape="placement"),
        "results": Key("shape", "How results are kept.", shape="results"),
        "mode": Key("text", "", state="reserved"),
    },
    lenient=True,
)
_shape(
    "results",
    "Results",
    "How the results of all tasks are kept.",
    {"reference_first": Key("boolean", "`true` stores every result, also small ones.")},
    noun="results block",
    lenient=True,
)
_shape(
    "limits",
    "Limits",
    "Bounds of an execution; the installation's limits apply as well.",
    {
        "max_payload_bytes": Key("count", "Largest payload stored inline in events.", least=1, templated=False),
        "max_hydrate_bytes": Key(
            "count",
            "Largest stored payload a template may resolve; for templates of the server at most the default.",
            least=1,
            templated=False,
        ),
        "max_iterations": Key("count", "Most iterations of one loop.", least=1, templated=False),
        "max_in_flight": Key("count", "Most iterations at the same time.", least=1, templated=False),
        "max_step_runs": Key(
            "count",
            "Most step runs of one execution. Default: a million; runs that repeat each other may exceed "
            "100,000 (300 in a cycle that no guard can leave) only at a rate of at most 50 per second.",
            least=1,
            templated=False,
        ),
        "max_call_depth": Key("count", "Deepest nesting of playbook and workbook calls.", least=1, templated=False),
        "max_state_bytes": Key("count", "Most bytes of `state`, as JSON. Default: 262144.", least=1, templated=False),
    },
    noun="limits block",
)
_shape(
    "step",
    "Step",
    "A node of the workflow: an admission gate, a pipeline of tasks, a router of arcs.",
    {
        "step": Key("name", "The step's name.", required=True),
        "desc": Key("text", "What it is for."),
        "description": Key("text", "The same as `desc`.", state="accepted", instead="desc"),
        "spec": Key("shape", "Modifiers and policies of the step.", shape="step.spec"),
        "input": Key("any", "Values the step's tasks read as `input.*`."),
        "loop": Key("shape", "Run the tasks once per item.", shape="loop"),
        "tool": Key("tasks", "The tasks: a list, or one mapping."),
        "output": Key("shape", "Where the result is stored, and which fields stay inline.", shape="output"),
        "output_select": Key("texts", "Fields that stay inline.", state="accepted", instead="output: {select: [...]}"),
        "set": Key("set", "Assignments after the step ends, whether it succeeds or fails."),
        "next": Key("shape", "The router: which arcs tokens take.", shape="next"),
        "args": Key("any", "", state="v10", instead="input"),
        "set_ctx": Key("mapping", "", state="v10", instead="set: {ctx.<key>: ...}"),
        "assert": Key("any", "", state="reserved"),
    },
)
_shape(
    "step.spec",
    "Step spec",
    "Modifiers of a step; other keys are defaults for its tasks.",
    {
        "policy": Key("shape", "Admission, lifecycle, failure.", shape="step.policy"),
        "pool": Key("text", "The worker pool that runs it."),
        "placement": Key("shape", "Which workers may run it.", shape="placement"),
        "cost": Key("count", "Slots of its worker that a run occupies (1).", least=1, templated=False),
        "timeout": Key("any", "Default timeout of its tasks."),
        "max_task_runs": Key("count", "Most task runs of one pipeline run.", least=1, templated=False),
        "validation": Key("shape", "JSON Schemas of the step's input and output.", shape="validation"),
    },
    open=True,
)
_shape(
    "placement",
    "Placement",
    "Which workers may run a step. `noetl run` ignores it.",
    {"labels": Key("mapping", "Labels that the worker must have (`noetl worker start --label gpu=true`).")},
    noun="placement block",
    lenient=True,
)
_shape(
    "validation",
    "Validation",
    "JSON Schemas that input and output must fit; else the outcome is an error of kind `schema`. Of a loop step, they "
    "apply to each iteration.",
    {
        "input": Key("any", "A JSON Schema, or the name of a registered one (`orders/v2`)."),
        "output": Key("any", "A JSON Schema, or the name of a registered one, for `output.data`."),
    },
    noun="validation block",
)
_shape(
    "step.policy",
    "Step policy",
    "When a step may start, how long it may take, what a failure means.",
    {
        "admit": Key("shape", "The gate before the step.", shape="admit"),
        "lifecycle": Key("shape", "Time limits.", shape="lifecycle"),
        "failure": Key("shape", "What a failed iteration means.", shape="failure"),
        "synthesize": Key("shape", "Steps that this step passes to the server as data.", shape="synthesize"),
        "emit": Key("shape", "Custom events at the end of the step.", shape="emit"),
        "mode": Key("text", "", state="reserved"),
        "tracing": Key("any", "", state="reserved"),
        "quotas": Key("shape", "How often runs of the step start, over all executions.", shape="quotas"),
        "compensation": Key("shape", "How a completed run of this step is undone.", shape="compensation"),
    },
    lenient=True,
)
_shape(
    "quotas",
    "Quotas",
    "A token bucket that all executions with the same key share. A run that has to wait holds no worker slot. On "
    "a step every run takes a token (of a loop: every iteration), on a task every attempt.",
    {
        "rate": Key("text", "How often: `10/s`, `600/m`, `1000/h` or `5000/d`.", required=True),
        "burst": Key("count", "How many may start at once after a pause (1).", least=1),
        "key": Key("text", "What shares the bucket, a template; default: this step or task of this playbook."),
    },
    noun="quotas block",
)
_shape(
    "emit",
    "Emit",
    "Custom events that are appended to the log at the end of the step.",
    {"events": Key("shapes", "The events, in order.", required=True, shape="emit.event")},
    noun="emit block",
)
_shape(
    "emit.event",
    "Custom event",
    "A custom event `custom.<name>`.",
    {
        "name": Key("name", "Its name: the event is `custom.<name>`.", required=True),
        "payload": Key("any", "Its data, with templates that read what arcs read."),
        "when": Key("template", "Whether it is emitted; default: if the step succeeded."),
    },
    noun="custom event",
)
_shape(
    "compensation",
    "Compensation",
    "How a completed run of a step is undone when the execution fails, or is cancelled with `--compensate`. The tasks "
    "read the recorded `input` and `output` of the run, `iter` of an iteration, and `failure`.",
    {
        "tool": Key("tasks", "The tasks: a list, or one mapping.", required=True),
        "when": Key("template", "Whether it is needed; default: always."),
    },
    noun="compensation block",
)
_shape(
    "admit",
    "Admission",
    "The gate before a step, evaluated on the server.",
    {
        "rules": Key("list", "First match wins; rules that all fail without an `else` deny.", shape="admit.rule"),
        "on_deny": Key("text", "A denied token waits, or is dropped.", choices=("park", "discard")),
        "join": Key("text", "Wait for all live branches, or run once per token.", choices=("all", "each")),
        "once": Key("boolean", "Run at most once per execution."),
        "mode": Key("text", "", state="reserved"),
    },
)
_shape(
    "admit.rule",
    "Admission rule",
    "A guard and its verdict.",
    {
        "when": Key("template", "The guard."),
        "then": Key("shape", "The verdict.", shape="admit.then"),
        "else": Key("else", "The verdict when no guard holds: `else: {then: {allow: false}}`."),
    },
)
_shape(
    "admit.then",
    "Admission verdict",
    "Whether the token may enter.",
    {"allow": Key("template", "`true` or `false`.", required=True)},
)
_shape(
    "lifecycle",
    "Lifecycle",
    "Time limits of a step; when one passes the step fails with kind `timeout`.",
    {
        "timeout_s": Key("number", "Seconds one run of the step may take.", least=0.001),
        "deadline_s": Key("number", "Seconds from the execution's start by which it must have ended.", least=0.001),
    },
    noun="lifecycle block",
)
_shape(
    "failure",
    "Failure",
    "What a failed iteration means for its loop.",
    {
        "mode": Key(
            "text",
            "Stop at the first failure, or continue and list the failures.",
            choices=("fail_fast", "best_effort"),
        ),
        "max_failed": Key("any", "best_effort: more failed iterations than this fail the step: a number, or `5%`."),
    },
    noun="failure block",
)
_shape(
    "synthesize",
    "Synthesis",
    "Workflow steps created at run time: the step passes them to the server as data.",
    {
        "from": Key("any", "The expression that yields the list of steps.", required=True),
        "limits": Key("shape", "Which steps may be added.", shape="synthesize.limits"),
    },
)
_shape(
    "synthesize.limits",
    "Synthesis limits",
    "Bounds on the steps that may be added.",
    {
        "steps": Key("count", "Most steps that may be added (100).", least=1, templated=False),
        "kinds": Key("texts", "Tool kinds they may use; default: all."),
    },
    noun="limits block",
)
_shape(
    "loop",
    "Loop",
    "Run the step's tasks once per item of a collection.",
    {
        "in": Key("any", "The collection: a list, or a mapping (its items as `{key, value}`).", required=True),
        "iterator": Key("name", "The item's name: `iter.<name>`.", required=True),
        "spec": Key("shape", "How iterations are scheduled.", shape="loop.spec"),
        "loop": Key("shape", "A loop inside this loop.", shape="loop"),
    },
)
_shape(
    "loop.spec",
    "Loop spec",
    "How iterations are scheduled; other keys are defaults for the tasks.",
    {
        "mode": Key("text", "One after the other, or in parallel.", choices=("sequential", "parallel")),
        "max_in_flight": Key("count", "Most iterations at the same time.", least=1),
        "until": Key("template", "Stop after the iteration for which this holds (sequential)."),
        "policy": Key("shape", "Placement and reducers.", shape="loop.policy"),
        "timeout": Key("any", "Default timeout of its tasks."),
        "max_task_runs": Key("count", "Most task runs of one pipeline run.", least=1, templated=False),
    },
    open=True,
)
_shape(
    "loop.policy",
    "Loop policy",
    "Placement and reducers.",
    {
        "exec": Key("text", "Run the iterations on one worker, or distribute them.", choices=("local", "distributed")),
        "reduce": Key("mapping", "How values written by several iterations are combined: `ctx.total: sum`."),
        "mode": Key("text", "", choices=("sequential", "parallel"), state="accepted", instead="loop.spec.mode"),
        "max_in_flight": Key("count", "", least=1, state="accepted", instead="loop.spec.max_in_flight"),
        "ordering": Key("any", "", state="reserved"),
        "backpressure": Key("any", "", state="reserved"),
        "partitioning": Key("any", "", state="reserved"),
    },
    lenient=True,
)
_shape(
    "task",
    "Task",
    "One tool invocation. The kind's parameters are written beside `kind` or under `input`.",
    {
        "name": Key("name", "The task's name: the jump target, and the name under which templates read its result."),
        "kind": Key("text", "The tool.", required=True),
        "desc": Key("text", "What it is for."),
        "input": Key("any", "Parameters and values; templates and code read them as `input.*`."),
        "output": Key("shape", "Where the result is stored, and which fields stay inline.", shape="output"),
        "output_select": Key("texts", "Fields that stay inline.", state="accepted", instead="output: {select: [...]}"),
        "set": Key("set", "Assignments after the task, whatever its outcome."),
        "spec": Key("shape", "Modifiers and policy of the task.", shape="task.spec"),
        "args": Key("any", "", state="v10", instead="input"),
        "retry": Key(
            "any", "`N`, or a mapping: retries inside one execution; rules see only the last outcome.", shape="retry"
        ),
    },
    open=True,
)
_shape(
    "retry",
    "Tool-internal retry",
    "The tool's own retries: the task's policy sees only the last outcome.",
    {
        "attempts": Key("count", "Number of executions.", least=1),
        "max_attempts": Key("count", "", least=1, state="accepted", instead="attempts"),
        "delay": Key("number", "Seconds before the next one.", least=0),
        "backoff": Key("text", "How the delay grows.", choices=(*BACKOFFS, "fixed")),
        "max_delay": Key("number", "Longest delay in seconds.", least=0),
        "initial_delay": Key("number", "", least=0, state="accepted", instead="delay"),
        "backoff_seconds": Key("number", "", least=0, state="accepted", instead="delay"),
        "on": Key("texts", "Error kinds that are retried; default: those that are retryable.", choices=(*ERROR_KINDS,)),
    },
    lenient=True,
    noun="retry block",
)
_shape(
    "task.spec",
    "Task spec",
    "Modifiers of a task; which other keys exist depends on the kind.",
    {
        "policy": Key("any", "Rules that decide what happens after the task.", shape="task.policy"),
        "timeout": Key("any", "Seconds, or `{connect, read, total}`."),
        "effect": Key(
            "text", "After a lost worker: run again, or fail as `ambiguous`.", choices=("at_least_once", "at_most_once")
        ),
        "retry": Key("any", "The tool's own retries.", shape="retry"),
        "max_task_runs": Key("count", "Most task runs of one pipeline run.", least=1, templated=False),
        "result": Key("mapping", "Where results are stored: `store: {kind, ...}`."),
        "validation": Key("shape", "JSON Schemas of the task's input and output.", shape="validation"),
        "pool": Key("text", "The worker pool that runs its step."),
        "placement": Key("shape", "Which workers may run its step.", shape="placement"),
        "cost": Key("count", "Slots of its worker that a run occupies (1).", least=1, templated=False),
    },
    open=True,
)
_shape(
    "task.policy",
    "Task policy",
    "What happens after the task: the first rule that matches decides.",
    {
        "rules": Key("list", "The rules.", required=True, shape="task.rule"),
        "on_unmatched": Key(
            "text", "What an error that no rule matches does (continue); a good outcome goes on.", choices=ON_UNMATCHED
        ),
        "mode": Key("text", "", state="reserved"),
        "quotas": Key("shape", "How often the task starts, over all executions.", shape="quotas"),
        "before": Key("list", "Tasks that run before the task; if one fails, the task fails.", shape="task"),
        "after": Key("list", "Tasks that run after the task has succeeded; they read its `output`.", shape="task"),
        "finally": Key("list", "Tasks that run after the task, whatever happened.", shape="task"),
    },
    lenient=True,
)
_shape(
    "task.rule",
    "Task rule",
    "A guard over `output` and what to do when it holds.",
    {
        "when": Key("template", "The guard."),
        "then": Key("shape", "The directive.", shape="directive"),
        "else": Key("else", "The directive when no guard holds: `else: {then: {do: continue}}`."),
    },
)
_shape(
    "directive",
    "Directive",
    "What the pipeline does next.",
    {
        "do": Key("text", "The directive.", required=True, choices=DIRECTIVES),
        "attempts": Key("count", "retry: number of executions, including the first one (3).", least=1),
        "backoff": Key("text", "retry: how the delay grows.", choices=(*BACKOFFS, "fixed")),
        "delay": Key("number", "retry, jump: seconds before the next execution.", least=0),
        "max_delay": Key("number", "retry: longest delay in seconds (300).", least=0),
        "to": Key("text", "jump: the task to continue with."),
        "message": Key("text", "fail: the message of the error, a template; default: the task's error."),
        "kind": Key("text", "fail: the kind of the error; default: that of the task's error.", choices=(*ERROR_KINDS,)),
        "set": Key("set", "Assignments."),
        "set_ctx": Key("mapping", "", state="v10", instead="set: {ctx.<key>: ...}"),
        "set_iter": Key("mapping", "", state="v10", instead="set: {iter.<key>: ...}"),
        "set_step": Key("mapping", "", state="v10", instead="set: {step.<key>: ...}"),
    },
)
_shape(
    "output",
    "Output block",
    "Where a large result is stored, and which fields stay inline in the event.",
    {
        "store": Key("mapping", "`{kind, bucket, ttl}` of the result store."),
        "inline_max_bytes": Key("count", "Largest result that stays inline; 0: none does.", least=0, templated=False),
        "select": Key("texts", "Dotted paths below `output.data` that stay inline."),
        "schema": Key("any", "A JSON Schema, or the name of a registered one (`orders/v2`), for `output.data`."),
        "output_select": Key("texts", "", state="accepted", instead="select"),
    },
)
_shape(
    "next",
    "Router",
    "The arcs that leave a step.",
    {
        "spec": Key("shape", "How arcs are chosen.", shape="next.spec"),
        "arcs": Key("shapes", "The arcs, in order.", required=True, shape="arc"),
    },
)
_shape(
    "next.spec",
    "Router spec",
    "How arcs are chosen.",
    {
        "mode": Key("text", "The first arc whose guard holds, or all of them.", choices=("exclusive", "inclusive")),
        "policy": Key("shape", "Defaults of `spec` of the arcs.", shape="arc.spec"),
        "on_no_match": Key("any", "", state="reserved"),
    },
    noun="router's spec",
    lenient=True,
)
_shape(
    "arc",
    "Arc",
    "An arc that leaves a step. Without `when` it is the success path.",
    {
        "step": Key("text", "The target.", required=True),
        "when": Key("template", "The guard."),
        "set": Key("set", "Assignments to `ctx` when this arc is taken."),
        "desc": Key("text", "What it is for."),
        "args": Key("mapping", "", state="v10", instead="set: {ctx.<key>: ...}, read by the target's `input`"),
        "spec": Key("shape", "How the tokens of this arc are treated.", shape="arc.spec"),
    },
    noun="arc",
)
_shape(
    "arc.spec",
    "Arc spec",
    "How tokens that take an arc are treated at its target. Tokens with a key enter the target one by one, as with "
    "`admit.join: each`.",
    {
        "dedupe": Key("template", "Tokens with an equal key are merged while one of them waits or its run is open."),
        "partition": Key("template", "Tokens with an equal key run one at a time in order; others run side by side."),
        "priority": Key(
            "number", "Orders the waiting runs of a pool: higher first; ten seconds of waiting count as one."
        ),
        "mode": Key("text", "", state="reserved"),
    },
    noun="arc's spec",
    lenient=True,
)
_shape(
    "block",
    "Workbook block",
    "A reusable block: step-like, or a bare task. Called by `kind: workbook`.",
    {
        "name": Key("name", "The block's name, in a list of blocks."),
        "desc": Key("text", "What it is for."),
        "input": Key("any", "Defaults of its input; the values of the call take precedence."),
        "loop": Key("shape", "Run the tasks once per item.", shape="loop"),
        "tool": Key("tasks", "The tasks."),
        "set": Key("set", "Assignments after the block ends."),
        "spec": Key("shape", "Modifiers and policies.", shape="step.spec"),
        "args": Key("any", "", state="v10", instead="input"),
        "assert": Key("any", "", state="reserved"),
    },
)
_shape(
    "choose",
    "Choose",
    "Run the tasks of the first branch whose guard holds.",
    {
        "name": Key("name", "A name to jump to."),
        "choose": Key(
            "list",
            "Branches: `{when, then: [tasks]}`, last `{else: {then: [tasks]}}`.",
            required=True,
            shape="choose.branch",
        ),
        "desc": Key("text", "What it is for."),
    },
    noun="`choose` item",
)
_shape(
    "choose.branch",
    "Choose branch",
    "A guard and its tasks.",
    {
        "when": Key("template", "The guard."),
        "then": Key("tasks", "The tasks."),
        "else": Key("else", "The tasks when no guard holds: `else: {then: [...]}`."),
    },
)
_shape(
    "while",
    "While",
    "Run tasks as long as a guard holds; it is evaluated before each iteration.",
    {
        "name": Key("name", "A name to jump to."),
        "while": Key("shape", "`{when, tool: [tasks]}`.", required=True, shape="while.body"),
        "desc": Key("text", "What it is for."),
    },
    noun="`while` item",
)
_shape(
    "until",
    "Until",
    "Run tasks until a guard holds; it is evaluated after each iteration.",
    {
        "name": Key("name", "A name to jump to."),
        "until": Key("shape", "`{when, tool: [tasks]}`.", required=True, shape="while.body"),
        "desc": Key("text", "What it is for."),
    },
    noun="`until` item",
)
_shape(
    "while.body",
    "Body",
    "A guard and tasks.",
    {
        "when": Key("template", "The guard.", required=True),
        "tool": Key("tasks", "The tasks.", required=True),
    },
    noun="block of tasks",
)

# Keychain kinds and their fields; typed credentials (`postgres_credential`) are aliases of `credential`.
_RENEWAL = {
    "scope": Key("any", "oauth2: the requested scope."),
    "auto_renew": Key("boolean", "Renew it before it expires (true)."),
}
KEYCHAIN_KINDS: dict[str, dict[str, Key]] = {
    "credential": {"credential": Key("text", "The stored credential; default: the entry's name.")},
    "env": {
        "var": Key("text", "The environment variable."),
        "vars": Key("mapping", "Several variables: field name -> variable."),
    },
    "file": {
        "path": Key("text", "The file.", required=True),
        "format": Key("text", "How to read it.", choices=("text", "json", "yaml")),
    },
    "static": {"value": Key("any", "The value itself; for tests only.", required=True)},
    "secret_manager": {
        "provider": Key("text", "The secret manager.", choices=("vault", "aws", "gcp", "azure", "file")),
        "secret": Key("text", "The secret's name in the manager; default: the entry's name."),
        "map": Key("mapping", "Several secrets: field name -> secret."),
        "version": Key("text", "The version of the secret."),
        "auth": Key("any", "How to authenticate to the manager."),
        "url": Key("text", "The address of the manager; default: the installation's."),
        "namespace": Key("text", "vault: the namespace."),
        "mount": Key("text", "vault: the mount path of the secrets engine."),
        "region": Key("text", "aws: the region."),
        "project": Key("text", "gcp: the project."),
        "path": Key("text", "file: the file, or a folder of files."),
        **_RENEWAL,
    },
    "oauth2": {
        "token_url": Key("text", "The token endpoint.", required=True),
        "endpoint": Key("text", "", state="accepted", instead="token_url"),
        "client_id": Key("any", "The client, or a keychain entry's name.", required=True),
        "client_secret": Key("any", "Its secret, or a keychain entry's name.", required=True),
        "data": Key(
            "mapping", "The fields of the token request.", state="accepted", instead="client_id and client_secret"
        ),
        "method": Key("text", "The verb of the token request (POST)."),
        "headers": Key("mapping", "Headers of the token request."),
        "audience": Key("text", "The audience of the token."),
        "client_auth": Key("text", "How the client authenticates (in the form).", choices=("form", "basic")),
        **_RENEWAL,
    },
    "bearer": {"token": Key("any", "The token, or a keychain entry's name.", required=True)},
}
KEYCHAIN_PLUGIN_KINDS = ("google_id_token",)
KEYCHAIN_ALIASES = {"secrets": "secret_manager", "secret": "secret_manager"}
