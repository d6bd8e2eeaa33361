"""The names visible to the templates of a run, and the lookup order of bare names.

`SharedScope` is what all runs of one step run have in common (workload, results of other steps); it is
built once and may serve a million iterations. `names_of` adds the scopes of one run.
A bare name is looked up in this order: pipeline locals, the iterator's name, tasks, steps, `ctx`,
`workload` (LANGUAGE section 4). Names are a plain dict that is updated when scopes change; of `ctx` and
`workload` it contains only the keys that some template of the pipeline reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from noetl.core.model.outcome import Outcome
from noetl.core.model.playbook import STATE_KEY, Playbook, ctx_part, state_part
from noetl.core.model.position import Item
from noetl.core.model.reference import Reference
from noetl.core.model.work import RunContext
from noetl.core.templates.views import Missing, NeedsPayload, OutputView, ResultView, located, plain
from noetl.errors import TemplateError

if TYPE_CHECKING:
    from noetl.core.pipeline.frame import Level

# Names that mean the same in every pipeline; an iterator, a task or a step cannot shadow them.
RESERVED = frozenset(
    {"workload", "keychain", "ctx", "execution_id", "args", "input", "iter", "step", "steps", "output", "outcome"}
    | {"job", "loop_index", "_prev", "_task", "_attempt", "_visit"}
)


class NeedsSecret(TemplateError):
    """A template reads a keychain entry whose value has not been fetched yet: fetch it and call again."""

    def __init__(self, name: str) -> None:
        super().__init__(f'the value of keychain entry "{name}" has not been fetched', kind="auth")
        self.secret = name


class Keychain(Mapping[str, Any]):
    """`keychain` for templates: declared names, with values fetched on first use."""

    __slots__ = ("_declared", "_failures", "_values")

    def __init__(self, declared: Sequence[str]) -> None:
        self._declared = tuple(declared)
        self._values: dict[str, Any] = {}
        self._failures: dict[str, str] = {}

    def __getitem__(self, name: str) -> Any:
        if name in self._values:
            return self._values[name]
        if name in self._failures:
            raise TemplateError(self._failures[name], kind="auth")
        if name in self._declared:
            raise NeedsSecret(name)
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._declared)

    def __len__(self) -> int:
        return len(self._declared)

    def __contains__(self, name: object) -> bool:
        return name in self._declared

    def provide(self, values: Mapping[str, Any]) -> None:
        """Add values that the shell has fetched."""
        self._values.update(values)

    def clear(self) -> None:
        """Drop the values before the next task: tokens expire, and the shell has those that do not."""
        self._values.clear()
        self._failures.clear()

    def fail(self, name: str, message: str) -> None:
        """Mark a value as unavailable: templates that read it fail with this message."""
        self._failures[name] = message


class SharedScope:
    """The names that all runs of one step run share."""

    __slots__ = ("base", "context", "failures", "payload_bytes", "payloads", "playbook", "references", "results")

    def __init__(self, context: RunContext, playbook: Playbook) -> None:
        self.context = context
        self.playbook = playbook
        self.payloads: dict[str, Any] = {}
        self.payload_bytes = 0
        self.failures: dict[str, tuple[str, str]] = {}
        self.results: dict[str, ResultView] = {}
        self.references: dict[str, Reference | TemplateError] = {}  # of data stored because a template reads its `ref`
        self.base: dict[str, Any] = {
            "workload": context.workload,
            "execution_id": context.execution_id,
            "job": {"uuid": context.execution_id, "execution_id": context.execution_id},
        }
        if context.failure is not None:
            self.base["failure"] = context.failure
        self._build_views()

    def _build_views(self) -> None:
        """Create the views of other steps' results."""
        context = self.context
        for name, outcome in context.results.items():
            results = context.task_results.get(name)
            view = ResultView(outcome, name=name, results=results, resolve=self.resolve, locate=self.locate)
            self.results[name] = view
            if name not in RESERVED:
                self.base[name] = view

    def resolve(self, reference: Reference) -> Any:
        """A stored payload that the shell has fetched; else NeedsPayload is raised."""
        key = reference.meta.sha256
        if key in self.payloads:
            return self.payloads[key]
        if key in self.failures:
            message, kind = self.failures[key]
            raise TemplateError(message, kind=kind)
        raise NeedsPayload(reference)

    def locate(self, data: Any) -> Reference:
        """The reference of data that is not in a store; NeedsReference is raised until the shell has stored it."""
        found = located(data, self.references)
        if isinstance(found, TemplateError):
            raise found
        reference: Reference = found
        return reference

    def with_reference(self, outcome: Outcome) -> Outcome:
        """The outcome with the reference under which a template has stored its data, if one has."""
        if not self.references or outcome.ref is not None or outcome.data is None:
            return outcome
        try:
            return replace(outcome, ref=self.locate(outcome.data))
        except TemplateError:
            return outcome

    def provide(self, reference: Reference, data: Any) -> None:
        """Add a payload that the shell has fetched."""
        self.payloads[reference.meta.sha256] = data
        self.payload_bytes += reference.meta.bytes

    def fail(self, reference: Reference, message: str, kind: str) -> None:
        """Mark a payload as unavailable: templates that read it fail with this message."""
        self.failures[reference.meta.sha256] = (message, kind)

    def clear(self) -> None:
        """Drop the fetched payloads; they are fetched again on demand."""
        self.payloads = {}
        self.payload_bytes = 0
        self.failures = {}
        self._build_views()


class Steps(Mapping[str, Any]):
    """`steps["a-b"]`: results by name; tasks of this pipeline take precedence over steps."""

    __slots__ = ("_level", "_shared")

    def __init__(self, shared: SharedScope, level: Level) -> None:
        self._shared = shared
        self._level = level

    def __getitem__(self, name: str) -> Any:
        result = self._level.results.get(name)
        if result is not None:
            return result.view
        if self._level.own is not None and name == self._level.program.owner.name:
            return self._level.own
        view = self._shared.results.get(name)
        if view is not None:
            return view
        if name in self._level.program.index or name in self._shared.playbook.steps_by_name:
            return _not_run(name)
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        yield from self._level.results
        yield from (name for name in self._shared.results if name not in self._level.results)

    def __len__(self) -> int:
        return len(set(self._level.results) | set(self._shared.results))


class Scopes(Mapping[str, Any]):
    """The names that a tool's code may read, as plain data and without secrets."""

    __slots__ = ("_level",)

    def __init__(self, level: Level) -> None:
        self._level = level

    def __getitem__(self, name: str) -> Any:
        if name in _NOT_FOR_CODE:
            raise KeyError(name)
        value = self._look_up(name)
        if value is None and name not in self._level.names:
            raise KeyError(name)
        if isinstance(value, Missing):
            raise KeyError(name)
        try:
            return plain(value)
        except NeedsPayload as missing:
            return plain(missing.reference)

    def __iter__(self) -> Iterator[str]:
        level = self._level
        names = dict.fromkeys((*level.names, *level.results))
        return (name for name in names if name not in _NOT_FOR_CODE and not isinstance(self._look_up(name), Missing))

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str) or name in _NOT_FOR_CODE:
            return False
        level = self._level
        known = name in level.names or name in level.results
        return known and not isinstance(self._look_up(name), Missing)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _look_up(self, name: str) -> Any:
        """The value of any name: `level.names` has only the names that templates read, but code may read all."""
        level = self._level
        if name in ("output", "_prev"):
            previous = level.results.get(level.previous) if level.previous else None
            return _NO_OUTPUT if previous is None else previous.view
        if name in level.results and name not in RESERVED and name not in level.iterators:
            return level.results[name].view
        return level.names.get(name)


_NOT_FOR_CODE = frozenset({"keychain", "steps", "outcome"})


def iteration(items: Sequence[Item], values: Sequence[Any], parent: dict[str, Any] | None = None) -> dict[str, Any]:
    """`iter` of the innermost of these loop levels; `iter.parent` is the next outer one."""
    current = parent
    for item, value in zip(items, values, strict=True):
        current = one_iteration(item.name, value, item.index, item.count, current)
    return current or {}


def one_iteration(name: str, value: Any, index: int, count: int, parent: dict[str, Any] | None) -> dict[str, Any]:
    """`iter` of one loop level."""
    scope = {"index": index, "count": count, "first": index == 0, "last": index == count - 1, name: value}
    if parent:
        scope["parent"] = parent
    return scope


def names_of(shared: SharedScope, level: Level, ctx: Mapping[str, Any], keychain: Keychain) -> dict[str, Any]:
    """The names of one level of a run, with every bare name that its templates read."""
    names = dict(shared.base)
    names["ctx"] = ctx_part(ctx) if shared.playbook.uses_state else ctx
    names["keychain"] = keychain
    names["args"] = names["input"] = level.input
    names["step"] = level.step
    names["iter"] = level.iter
    if "index" in level.iter:
        names["loop_index"] = level.iter["index"]
    for label, result in level.results.items():
        if label not in RESERVED:
            names[label] = result.view
    for name in level.iterators:
        if name not in RESERVED:
            names[name] = level.iterators[name]
    program = level.program
    if "steps" in program.bare:
        names["steps"] = Steps(shared, level)
    level.fallbacks = set()
    for name in program.bare:
        if name not in names:
            fall_back(shared, level, names, ctx, name)
    if shared.playbook.uses_state and "state" not in names:  # code may read it too
        fall_back(shared, level, names, ctx, "state")
    return names


def fall_back(shared: SharedScope, level: Level, names: dict[str, Any], ctx: Mapping[str, Any], name: str) -> None:
    """Set a bare name to its value from `ctx` or `workload`, or to undefined for a task or step that has not run."""
    if name in RESERVED:
        return
    if name in ctx:
        names[name] = ctx[name]
    elif name in shared.context.workload:
        names[name] = shared.context.workload[name]
    elif name in level.program.index or name in shared.playbook.steps_by_name:
        names[name] = _not_run(name)
    elif name == "state":
        names[name] = state_part(ctx)
    else:
        names.pop(name, None)
    level.fallbacks.add(name)


def show_ctx(shared: SharedScope, level: Level, ctx: Mapping[str, Any], keys: Sequence[str]) -> None:
    """Update `ctx` and the bare names of its keys after a write."""
    level.names["ctx"] = ctx_part(ctx) if shared.playbook.uses_state else ctx
    for key in keys:
        if key.startswith(STATE_KEY):
            key = "state"
        if key in level.fallbacks:
            fall_back(shared, level, level.names, ctx, key)


def show_output(shared: SharedScope, level: Level, outcome: Outcome | None) -> None:
    """Set `output` (and its older name `outcome`) to this outcome; None: no task has run yet."""
    names, program = level.names, level.program
    if outcome is None:
        names["output"] = names["outcome"] = _NO_OUTPUT
        return
    results = level.task_outcomes() if program.composite else None
    name = program.owner.name
    if len(program.tasks) == 1 and name in program.bare and name in shared.playbook.steps_by_name:
        # The rules and `set` of a step's only task read the step's name as this run, not as the one before.
        names[name] = ResultView(outcome, name=name, resolve=shared.resolve, locate=shared.locate)
    if "output" in program.bare:
        names["output"] = OutputView(outcome, results=results, resolve=shared.resolve, locate=shared.locate)
    if "outcome" in program.bare:
        names["outcome"] = OutputView(
            outcome, name="outcome", results=results, resolve=shared.resolve, locate=shared.locate
        )


def show_own_result(shared: SharedScope, level: Level, outcome: Outcome) -> None:
    """Set the name of the step to the run that has just completed, as its own `set` reads it."""
    name, program = level.program.owner.name, level.program
    results = level.task_outcomes() if program.composite else None
    level.own = ResultView(outcome, name=name, results=results, resolve=shared.resolve, locate=shared.locate)
    if name in program.bare and name not in RESERVED and name not in level.iterators and name not in level.results:
        level.names[name] = level.own


_NO_OUTPUT = Missing("output", "no task has run before this one")


def _not_run(name: str) -> Missing:
    return Missing(name, f'"{name}" has not run')
