"""The frame: the mutable state of one run's pipeline.

A `Frame` is created from a `RunOrder`; only this package changes it. Its `levels` are a stack: the
step's own pipeline, and above it one level for each workbook call in progress. What must survive a
change of worker is written to a `Position` and restored from one in this module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

from noetl.core.model.events import Event
from noetl.core.model.ids import IterationPath
from noetl.core.model.merge import put_path
from noetl.core.model.outcome import ErrorInfo, Outcome
from noetl.core.model.playbook import Playbook, Task
from noetl.core.model.position import CallFrame, LoopFrame, PendingMove, Position
from noetl.core.model.quotas.token_bucket import Demand
from noetl.core.model.work import RunOrder
from noetl.core.pipeline.actions import RecordedInput
from noetl.core.pipeline.nondeterminism_log import NondeterminismLog
from noetl.core.pipeline.program import CompiledTask, Program, Programs
from noetl.core.pipeline.scopes import Keychain, SharedScope, iteration, names_of, one_iteration, show_output
from noetl.core.templates.budget import DECISION_DATA, Meter
from noetl.core.templates.template import Compiled
from noetl.core.templates.views import ResultView, StoredView, with_stored


class TaskResult:
    """The outcome of a finished task: with its data, as written to the log, and as a view for templates."""

    __slots__ = ("_name", "_shared", "_view", "outcome", "recorded")

    def __init__(self, name: str, outcome: Outcome, recorded: Outcome, shared: SharedScope) -> None:
        self.outcome = outcome
        self.recorded = recorded
        self._name = name
        self._shared = shared
        self._view: ResultView | None = None

    @property
    def view(self) -> ResultView:
        """The view for templates, created on first use."""
        if self._view is None:
            self._view = ResultView(
                self.outcome, name=self._name, resolve=self._shared.resolve, locate=self._shared.locate
            )
        return self._view


class BlockLoop:
    """One level of a looping block."""

    __slots__ = ("index", "items", "outputs", "skipped")

    def __init__(self, items: Sequence[Any], index: int = 0, outputs: Sequence[Outcome] = (), skipped: int = 0) -> None:
        self.items = list(items)
        self.index = index
        self.outputs = list(outputs)
        self.skipped = skipped


class Level:
    """A pipeline on the stack: the step's own, or that of a called block."""

    __slots__ = (
        "attempt",
        "call_task",
        "current",
        "ended",
        "error",
        "event_visit",
        "failing",
        "fallbacks",
        "input",
        "input_evaluated",
        "iter",
        "iter_base",
        "iterators",
        "last",
        "loops",
        "names",
        "own",
        "pending",
        "prefix",
        "prepared",
        "previous",
        "program",
        "ran",
        "results",
        "scratch",
        "step",
        "task_input",
        "task_runs",
        "visit",
        "visits",
    )

    def __init__(self, program: Program, *, prefix: str = "", call_task: str = "") -> None:
        self.program = program
        self.prefix = prefix  # of labels in events: `call/` for tasks of a block called by task `call`
        self.call_task = call_task
        self.current = 0  # index of the task to run; undefined once the pipeline has ended
        self.visit = 1
        self.attempt = 1
        self.event_visit = 1
        self.visits: dict[str, int] = {}
        self.task_runs = 0
        self.input: dict[str, Any] = {}
        self.step: dict[str, Any] = {}
        self.iter: dict[str, Any] = {}
        self.iter_base: dict[str, Any] = {}
        self.scratch: dict[str, Any] = {}  # what was written to `iter`
        self.results: dict[str, TaskResult] = {}
        self.previous: str | None = None  # label of `_prev`
        self.last: TaskResult | None = None  # of the last task that completed
        self.ran = False  # whether a task ran and was not skipped
        self.ended: Literal["done", "failed"] | None = None
        self.error: ErrorInfo | None = None
        self.failing: TaskResult | None = None  # of the task that failed the pipeline; None for other errors
        self.loops: list[BlockLoop] = []
        self.names: dict[str, Any] = {}
        self.own: ResultView | None = None  # the result of the whole step, once its own `set` is evaluated
        self.fallbacks: set[str] = set()
        self.iterators: dict[str, Any] = {}
        self.task_input: dict[str, Any] | None = None  # rendered input of the current task
        self.prepared = False  # whether the input is evaluated and the names are built
        self.pending: PendingMove | None = None  # while the tasks around a task run
        self.input_evaluated = False  # on a worker, so that the position must include it

    @property
    def compiled(self) -> CompiledTask:
        """The compiled task at the program counter."""
        return self.program.tasks[self.current]

    @property
    def task(self) -> Task:
        """The task at the program counter."""
        return self.program.tasks[self.current].task

    def label(self, task: Task) -> str:
        """The task's name in events."""
        return self.prefix + task.name if self.prefix else task.name

    def task_outcomes(self) -> dict[str, Outcome]:
        """Outcomes of the finished tasks by name."""
        return {label: result.outcome for label, result in self.results.items()}

    def write_iter(self, scratch: dict[str, Any]) -> None:
        """Set the writes to `iter`."""
        self.scratch = scratch
        self.iter = {**self.iter_base, **scratch} if scratch else self.iter_base
        self.names["iter"] = self.iter


_NO_KEYCHAIN = Keychain(())


class Frame:
    """A run in progress."""

    __slots__ = (
        "began",
        "call_patch",
        "ctx",
        "interrupted",
        "keychain",
        "levels",
        "looping",
        "lost",
        "meter",
        "nondeterminism",
        "only_starts",
        "order",
        "outbox",
        "path",
        "playbook",
        "programs",
        "resume",
        "run_id",
        "shared",
        "task_input",
        "tokens",
        "turn",
        "undone",
        "wait",
        "written",
    )

    def __init__(
        self, order: RunOrder, programs: Programs, shared: SharedScope, nondeterminism: NondeterminismLog
    ) -> None:
        self.order = order
        self.programs = programs
        self.playbook: Playbook = programs.playbook
        self.shared = shared
        self.keychain = Keychain(programs.secrets) if programs.secrets else _NO_KEYCHAIN
        self.nondeterminism = nondeterminism
        # What the templates of one decision (before a task, after a task) may cost together.
        self.meter = Meter(max(DECISION_DATA, 4 * self.playbook.executor.limits.max_hydrate_bytes))
        self.run_id = order.run_id
        self.path: IterationPath = order.path  # empty for a step without a loop
        self.looping = bool(order.path)  # the run is one iteration of a looping step
        self.ctx: Mapping[str, Any] = with_stored(order.ctx, shared.resolve)
        self.written: dict[str, Any] = {}  # to `ctx`, by dotted path
        self.call_patch: dict[str, Any] = {}  # ctx writes of the `set` of the block that has just ended
        self.levels: list[Level] = []
        self.outbox: list[Event] = []
        self.only_starts = True  # the outbox has received only start events under this lease
        self.lost = order.lost
        self.interrupted = order.lost > 0 and order.resume is None
        self.resume = order.resume
        self.undone = order.context.output  # of a compensation: its tasks' fields read it as `output`
        self.task_input: RecordedInput | None = None  # of the task whose outcome is applied
        self.wait = 0.0
        turn = order.position.turn if order.position is not None else None
        self.began = order.position is not None and (turn is None or not turn.of_step)  # it has its step's token
        self.turn = None if order.lost else turn  # a lost worker may have used it
        self.tokens: dict[bool, Demand | None] = {}  # of quotas: that of the step (True), that of the next task (False)

    @property
    def root(self) -> Level:
        """The step's own pipeline."""
        return self.levels[0]

    @property
    def top(self) -> Level:
        """The pipeline that is running."""
        return self.levels[-1]

    def evaluate(self, level: Level, value: Compiled) -> Any:
        """The value of a template of a level."""
        return value.evaluate(level.names, self.nondeterminism, meter=self.meter)

    def holds(self, level: Level, when: Compiled | None) -> bool:
        """Whether a level has a guard, and it is true."""
        return when is not None and when.holds(level.names, self.nondeterminism, self.meter)

    def iter_owner(self, level: Level) -> Level:
        """The level that owns the `iter` of a level: a block without a loop shares that of its caller."""
        number = self.levels.index(level)
        while number and not self.levels[number].loops:
            number -= 1
        return self.levels[number]

    def drain(self) -> tuple[Event, ...]:
        """Remove and return the events of the outbox."""
        events = tuple(self.outbox)
        self.outbox.clear()
        return events


def open_frame(
    order: RunOrder,
    programs: Programs,
    shared: SharedScope,
    nondeterminism: NondeterminismLog,
    values: Sequence[Any] | None = None,
) -> Frame:
    """Create a frame at the start of the run, or at the position of an earlier lease.

    `values` are the run's loop elements, outermost first, if the order has them by reference.
    """
    frame = Frame(order, programs, shared, nondeterminism)
    definition = order.context.definition
    program = programs.step(order.context.step) if definition is None else programs.synthesized(definition)
    level = Level(program)
    level.input = {**order.context.args, **order.context.input} if order.context.args else order.context.input
    level.step = order.step_scope
    items = order.items
    if items:
        level.iter_base = iteration(items, [item.value for item in items] if values is None else values)
    level.iter = level.iter_base
    frame.levels.append(level)
    if order.position is None:
        enter(frame, level, 0)
    else:
        _restore(frame, order.position)
    return frame


def enter(frame: Frame, level: Level, index: int) -> None:
    """Move the program counter to a task (a new visit of it), or to the end of the pipeline."""
    level.task_input = None
    if index >= len(level.program.tasks):
        level.ended = "done"
        return
    level.current = index
    level.attempt = 1
    label = level.task.name
    level.visit = level.visits.get(label, 0) + 1
    level.visits[label] = level.visit
    if level.prefix:
        # A block may be called repeatedly: its events count visits over the whole run.
        counts = frame.root.visits
        full = level.label(level.task)
        level.event_visit = counts[full] = counts.get(full, 0) + 1
    else:
        level.event_visit = level.visit


def show(frame: Frame, level: Level) -> None:
    """Build the names that are visible to templates of this level."""
    iterators: dict[str, Any] = {}
    if not level.loops:
        for item in frame.order.items:
            iterators[item.name] = _named(frame.root.iter_base, item.name)
    for loop in level.program.loops[: len(level.loops)]:
        iterators[loop.iterator] = _named(level.iter_base, loop.iterator)
    level.iterators = iterators
    level.names = names_of(frame.shared, level, frame.ctx, frame.keychain)
    previous = level.results.get(level.previous) if level.previous else None
    show_output(frame.shared, level, previous.outcome if previous else None)
    if previous is not None:
        level.names["_prev"] = previous.view


def block_iteration(frame: Frame, level: Level) -> None:
    """Set `iter` of a looping block to its current indices."""
    parent: dict[str, Any] | None = frame.levels[frame.levels.index(level) - 1].iter or None
    for described, loop in zip(level.program.loops, level.loops, strict=False):
        parent = one_iteration(described.iterator, loop.items[loop.index], loop.index, len(loop.items), parent)
    level.iter_base = parent or {}
    level.iter = level.iter_base
    level.scratch = {}


def _named(iter_: Mapping[str, Any], name: str) -> Any:
    """The value of an iterator, searched from the innermost loop outwards."""
    current: Any = iter_
    while current is not None and isinstance(current, Mapping):
        if name in current:
            return current[name]
        current = current.get("parent")
    return None


# ── positions ───────────────────────────────────────────────────────────────────────────


def position_of(frame: Frame) -> Position:
    """The position of the run, as far as a later lease needs it."""
    calls = tuple(
        CallFrame(
            block=level.program.owner.name,
            task=level.call_task,
            position=_position(level),
            input=level.input,
            loops=tuple(
                LoopFrame(items=tuple(loop.items), index=loop.index, outputs=tuple(loop.outputs), skipped=loop.skipped)
                for loop in level.loops
            ),
        )
        for level in frame.levels[1:]
    )
    return _position(frame.root, frame.written, calls)


def position_after(frame: Frame, level: Level) -> Position | None:
    """The position after a task of a level; None at the end of its pipeline, which the same report describes.

    After an iteration of a block the next one follows, which may run long after the report."""
    return None if level.ended and not level.loops else position_of(frame)


def _position(
    level: Level, written: Mapping[str, Any] = MappingProxyType({}), calls: tuple[CallFrame, ...] = ()
) -> Position:
    program = level.program
    retained = set(program.retained)
    ended = level.ended is not None
    if level.previous and (ended or level.compiled.reads_previous):
        retained.add(level.previous)
    if level.pending is not None and level.previous:
        retained.add(level.previous)  # the result of the task in the middle
    visits = level.visits if program.repeats else {name: n for name, n in level.visits.items() if "/" in name}
    return Position(
        task=None if ended else level.task.name,
        visit=level.visit,
        attempt=level.attempt,
        visits=dict(visits),
        task_runs=level.task_runs,
        iter=level.scratch,
        step=level.step,
        ctx=dict(written),
        results={label: result.recorded for label, result in level.results.items() if label in retained},
        previous=level.previous,
        input=level.input if level.input_evaluated else None,
        calls=calls,
        pending=PendingMove("fail", error=level.error) if level.ended == "failed" else level.pending,
    )


def _restore(frame: Frame, position: Position) -> None:
    """Restore the position of an earlier lease."""
    root = frame.root
    _restore_level(frame, root, position)
    frame.written = dict(position.ctx)
    for path, value in position.ctx.items():
        keys = tuple(path.split("."))
        if len(keys) == 1 or not isinstance(frame.ctx.get(keys[0]), StoredView):  # the stored value has the write
            frame.ctx = put_path(frame.ctx, keys, value)
    for call in position.calls:
        program = frame.programs.block(call.block)
        if program is None:
            raise LookupError(f"block {call.block!r} is not part of this playbook")
        level = Level(program, prefix=f"{frame.top.prefix}{call.task}/", call_task=call.task)
        level.input = dict(call.input)
        level.loops = [BlockLoop(loop.items, loop.index, loop.outputs, loop.skipped) for loop in call.loops]
        level.iter_base = frame.top.iter
        level.iter = level.iter_base
        frame.levels.append(level)
        if level.loops:
            block_iteration(frame, level)
        _restore_level(frame, level, call.position)
        if level.ended is None:
            level.event_visit = root.visits.get(level.label(level.task), 1)


def _restore_level(frame: Frame, level: Level, position: Position) -> None:
    if position.task is not None:
        level.current = level.program.index[position.task]
        level.pending = position.pending
    elif position.pending is None:
        level.ended = "done"
    else:
        level.ended, level.error = "failed", position.pending.error
    level.visit = level.event_visit = position.visit
    level.attempt = position.attempt
    level.visits = dict(position.visits)
    level.task_runs = position.task_runs
    level.step = {**level.step, **position.step}
    level.scratch = dict(position.iter)
    level.iter = {**level.iter_base, **level.scratch}
    level.previous = position.previous
    if position.input is not None:
        level.input = position.input
        level.input_evaluated = True
    for label, recorded in position.results.items():
        level.results[label] = TaskResult(label, recorded, recorded, frame.shared)
    if position.previous is not None:
        level.last = level.results.get(position.previous)
    level.ran = position.previous is not None
    if level.ended == "failed":
        level.failing = level.last
