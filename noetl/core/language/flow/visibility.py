"""Which names a template can read where.

A `Visibility` describes one kind of place. `EVERYWHERE` has the names that exist at every place; each place adds
its own scopes. Secrets are not visible on the server, so that none can reach `ctx`, an event or a route.
"""

from __future__ import annotations

from functools import cache

from msgspec import Struct
from msgspec.structs import replace

EVERYWHERE = frozenset({"workload", "execution_id", "job"})
STATE = frozenset({"ctx", "args", "input", "steps", "state"})
LOCALS = frozenset({"_prev", "_task", "_attempt", "_visit"})
STATUS_HELPERS = frozenset({"done", "ok", "fail", "running", "loop_done", "all_done", "any_done"})

# Names of scopes; steps, tasks and iterators cannot have them. `state` is not one of them: playbooks that have used it
# as the name of a step, an iterator or a value keep their meaning.
SCOPE_NAMES = (
    EVERYWHERE | STATE | LOCALS | {"keychain", "iter", "step", "output", "outcome", "event", "loop_index"}
) - {"state"}


# One-line descriptions of scopes, for editors.
SCOPES = {
    "workload": "The playbook's input: its defaults with the request's payload merged over them.",
    "ctx": "Values of this execution; written by `set: {ctx.name: ...}`, read by every later step.",
    "state": "Values that executions of this playbook share; `set: {state.name: ...}` is committed when one succeeds.",
    "step": "Values of one step run; written by `set: {step.name: ...}` inside it.",
    "iter": "The loop's current item (`iter.<iterator>`), `index`, `count`, `first`, `last`, `parent`.",
    "input": "The input of the step or task.",
    "args": "Old name of `input`.",
    "output": "The result of the task or step: `status`, `data`, `ref`, `error`, and the kind's own fields.",
    "outcome": "Old name of `output`.",
    "failure": "Of a compensation: why the execution ends (`kind`, `message`, `details`, `step`).",
    "event": "The boundary event that an arc or gate evaluates: `event.name`.",
    "keychain": "Secrets by name; they exist on the worker only and never in `set`.",
    "steps": "Finished steps by name: `steps.fetch.status`, `steps.fetch.output`.",
    "execution_id": "The id of this execution.",
    "job": "`job.uuid` and `job.execution_id` are the execution's id.",
    "_prev": "The output of the previous task.",
    "_task": "The name of this task.",
    "_attempt": "The number of this execution within the visit, from 1.",
    "_visit": "The number of times the task was entered, from 1.",
    "loop_index": "The same as `iter.index`.",
}
OLDER_SCOPES = frozenset({"args", "outcome", "job", "loop_index"})  # accepted, not canonical


class Visibility(Struct, frozen=True):
    """A kind of place: where it is evaluated, and which scopes exist there."""

    title: str
    scopes: frozenset[str]
    server: bool = False
    helpers: bool = False  # done('a') and its family
    results: bool = True  # results of steps by name
    tasks: bool = False  # results of the pipeline's tasks by name
    locals: bool = False  # _prev and its family


def _visibility(title: str, *scopes: str, server: bool = False, **more: bool) -> Visibility:
    keychain = () if server else ("keychain",)
    return Visibility(title, EVERYWHERE | STATE | {*scopes, *keychain}, server=server, helpers=server, **more)


ADMIT = _visibility("an admission rule", "event", server=True)
STEP_INPUT = _visibility("a step's `input`", server=True)
LOOP_IN = _visibility("a loop's `in`", server=True)
INNER_LOOP_IN = _visibility("an inner loop's `in`", "iter", server=True)
LIMIT = _visibility("a step's time limit", server=True)
LOOP_INPUT = _visibility("a loop step's `input`", "iter", "loop_index")
LOOP_UNTIL = _visibility("a loop's `until`", "iter", "loop_index", "step", "output", "outcome", tasks=True)
TASK = _visibility("a task's fields", "iter", "loop_index", "step", "output", "outcome", tasks=True, locals=True)
QUOTA = replace(TASK, title="a quota", scopes=TASK.scopes - {"keychain"})  # the log has its values
RULE = _visibility("a policy rule", "iter", "loop_index", "step", "output", "outcome", tasks=True, locals=True)
TASK_SET = _visibility("a task's `set`", "iter", "loop_index", "step", "output", "outcome", tasks=True, locals=True)
STEP_SET = _visibility("a step's `set`", "step", "output", "outcome", "result", tasks=True)
ARC = _visibility("an arc", "output", "outcome", "result", "event", server=True)
_UNDO = ("iter", "loop_index", "failure")
COMPENSATE_WHEN = _visibility("a compensation's `when`", *_UNDO, "output", "outcome", "result", server=True)
SYNTHESIS = _visibility("`synthesize`", "output", "outcome", "result", "event", server=True)
BLOCK_INPUT = _visibility("a block's `input`", "iter", "loop_index")
BLOCK_LOOP_IN = _visibility("a block's loop", "iter", "loop_index")
BLOCK_SET = _visibility("a block's `set`", "iter", "loop_index", "step", "output", "outcome", "result", tasks=True)
# `input` and `payload` are the payload of the request.
WORKLOAD = Visibility("a workload default", EVERYWHERE | {"input", "payload", "state"}, server=True, results=False)
KEYCHAIN = Visibility("a keychain entry", EVERYWHERE | {"keychain"}, results=False)
TRACING = Visibility("an attribute of spans", EVERYWHERE, server=True, results=False)

VISIBILITIES = (
    ADMIT, STEP_INPUT, LOOP_IN, INNER_LOOP_IN, LIMIT, LOOP_INPUT, LOOP_UNTIL, TASK, QUOTA, RULE, TASK_SET, STEP_SET,
    ARC, COMPENSATE_WHEN, SYNTHESIS, BLOCK_INPUT, BLOCK_LOOP_IN, BLOCK_SET, WORKLOAD, KEYCHAIN, TRACING,
)  # fmt: skip


@cache
def in_compensation(visibility: Visibility) -> Visibility:
    """The names of a place inside the tasks of a compensation."""
    return replace(visibility, scopes=visibility.scopes | {"failure"})


def task_visibility(late: tuple[str, ...]) -> Visibility:
    """The fields of a task, with the names that the tool adds."""
    return replace(TASK, scopes=TASK.scopes | {*late}) if late else TASK


# Where a scope is available, for the hint.
AVAILABILITY_HINTS = {
    "iter": "`iter` exists inside the iterations of a loop",
    "step": "`step` exists inside the step; write `ctx.*` to pass a value on",
    "output": "`output` exists once a task or step has run; read a finished step by its name",
    "outcome": "`output` exists once a task or step has run; read a finished step by its name",
    "event": "`event` exists in arcs and admission rules",
    "result": "`result` exists in arcs; read a finished step by its name",
    "ctx": "`ctx` exists once the workflow runs",
    "steps": "`steps` exists once the workflow runs",
    "_prev": "`_prev` exists inside a pipeline",
    "_task": "`_task` exists inside a pipeline",
    "_attempt": "`_attempt` exists inside a pipeline",
    "_visit": "`_visit` exists inside a pipeline",
    "loop_index": "`iter.index` exists inside the iterations of a loop",
}
