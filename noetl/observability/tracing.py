"""OpenTelemetry traces of executions, steps and tasks (extra `noetl-engine[otel]`).

    execution  ── step ── task ── HTTP calls of the task

An execution outlives processes, so its spans cannot be passed between them. Their ids are derived instead: the
trace id from the execution (or from the `traceparent` of its request, which is in the log), a span id from its
run. A worker thus knows the parent of its span without communication, and the server that writes the last event
of an execution exports its span.

`ACTIVE` is None unless the process exports spans. `executor.spec.tracing` says whether and which share of the
executions of a playbook is traced. The decision depends on the trace id alone, so all processes make the same one.
Trace ids are derived without OpenTelemetry: with `enabled: true` outcomes have them even if nothing is exported.
"""

from __future__ import annotations

import hashlib
import logging
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TextIO

from msgspec import Struct
from msgspec.structs import replace

from noetl.core.model.outcome import ErrorInfo, Outcome
from noetl.core.model.playbook import TracePolicy
from noetl.core.model.secret_names import mask_secret_names
from noetl.core.templates.budget import Meter
from noetl.core.templates.template import compile_value
from noetl.errors import RequestRefused, TemplateError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

HEADER = "traceparent"
MAX_ATTRIBUTE = 64 * 1024  # characters
_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_LOW_BITS = (1 << 64) - 1  # of a trace id: they decide whether it is sampled, as in OpenTelemetry

ACTIVE: Tracing | None = None

_log = logging.getLogger("noetl.tracing")


class Trace(Struct, frozen=True):
    """The trace of an execution."""

    id: int
    parent: int | None  # the span of the request
    sampled: bool

    def traceparent(self, span_id: int) -> str:
        """The W3C trace context of a span."""
        return f"00-{self.id:032x}-{span_id:016x}-{int(self.sampled):02x}"

    @property
    def text(self) -> str:
        """The trace id as outcomes and logs have it."""
        return f"{self.id:032x}"


class CurrentSpan(Struct, frozen=True):
    """The span of the current run or task; `span` is None if it is not exported."""

    trace: Trace
    id: int
    span: Any = None


_SPAN: ContextVar[CurrentSpan | None] = ContextVar("noetl_span", default=None)


def trace_of(policy: TracePolicy, execution_id: str, traceparent: str | None) -> Trace | None:
    """The trace of an execution; None if it is not traced. A trace context of the request decides on sampling."""
    if policy.enabled is False or (policy.enabled is None and ACTIVE is None):
        return None
    if traceparent:
        found = _TRACEPARENT.fullmatch(traceparent)
        assert found is not None, traceparent
        return Trace(int(found[1], 16), int(found[2], 16), bool(int(found[3], 16) & 1))
    trace_id = _hash("trace", execution_id, 16)
    return Trace(trace_id, None, (trace_id & _LOW_BITS) < policy.sample * (1 << 64))


def child_traceparent(policy: TracePolicy, execution_id: str, traceparent: str | None, task_run_id: str) -> str | None:
    """The `traceparent` for a child execution of a task."""
    trace = trace_of(policy, execution_id, traceparent)
    return traceparent if trace is None else trace.traceparent(_span_id(task_run_id))


def attributes_of(policy: TracePolicy, workload: Mapping[str, Any], execution_id: str) -> dict[str, Any]:
    """The playbook's own attributes of spans, without workload values that have a secret name; one that cannot be
    evaluated is left out."""
    if not policy.attributes:
        return {}
    names = {"workload": mask_secret_names(workload), "execution_id": execution_id, "job": {"uuid": execution_id}}
    found = {}
    meter = Meter()
    for name, value in policy.attributes.items():
        try:
            given = compile_value(value).evaluate(names, max_text=MAX_ATTRIBUTE, meter=meter)
        except TemplateError as problem:
            _log.warning("the span attribute %s is left out: %s", name, problem)
            continue
        found[name] = given if isinstance(given, str | bool | int | float) else str(given)
    return found


def is_traceparent(text: str) -> bool:
    """Whether this is a valid W3C trace context with a trace id and a span id."""
    found = _TRACEPARENT.fullmatch(text)
    return found is not None and int(found[1], 16) != 0 and int(found[2], 16) != 0


def current_traceparent() -> str | None:
    """The `traceparent` header for an outgoing request; None if there is no current span."""
    current = _SPAN.get()
    return None if current is None else current.trace.traceparent(current.id)


@contextmanager
def run_span(
    trace: Trace, execution_id: str, run_id: str, step: str, attributes: Mapping[str, Any] | None = None
) -> Iterator[None]:
    """The span of a run of a step (of one iteration in a loop)."""
    own = {**(attributes or {}), "noetl.execution_id": execution_id, "noetl.step": step, "noetl.run_id": run_id}
    with _current(trace, f"step {step}", _span_id(run_id), _span_id(execution_id), own):
        yield


@contextmanager
def task_span(
    outer: CurrentSpan, task_run_id: str, label: str, kind: str, attempt: int, attributes: Mapping[str, Any]
) -> Iterator[None]:
    """The span of one tool call inside a run."""
    own = {
        **attributes,
        "noetl.task": label,
        "noetl.kind": kind,
        "noetl.task_run_id": task_run_id,
        "noetl.attempt": attempt,
    }
    with _current(outer.trace, f"task {label}", _span_id(task_run_id), outer.id, own):
        yield


def current() -> CurrentSpan | None:
    """The span of the current run or task, None if it is not traced."""
    return _SPAN.get()


def start(kind: str, *, service: str, instance: str = "", stream: TextIO | None = None) -> None:
    """Start tracing this process: `otlp`, `console`, or `off`."""
    if kind == "off":
        return
    try:
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter
    except ImportError:
        raise RequestRefused(
            "tracing requires OpenTelemetry: pip install 'noetl-engine[otel]', or set traces to off"
        ) from None
    exporter: SpanExporter
    if kind == "console":
        exporter = ConsoleSpanExporter(
            out=stream or sys.stderr, formatter=lambda span: span.to_json(indent=None) + "\n"
        )
    else:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        exporter = OTLPSpanExporter()
    global ACTIVE
    ACTIVE = Tracing(exporter, service=service, instance=instance)


def stop() -> None:
    """Export pending spans and stop tracing."""
    global ACTIVE
    tracing, ACTIVE = ACTIVE, None
    if tracing is not None:
        tracing.close()


class Tracing:
    """The spans of one process."""

    def __init__(self, exporter: SpanExporter, *, service: str, instance: str = "", at_once: bool = False) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor

        self._ids = _derived_ids()
        resource = Resource.create({"service.name": service, "service.instance.id": instance})
        self._provider = TracerProvider(resource=resource, id_generator=self._ids, shutdown_on_exit=False)
        self._provider.add_span_processor(SimpleSpanProcessor(exporter) if at_once else BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("noetl")

    def execution(
        self,
        trace: Trace,
        execution_id: str,
        *,
        path: str,
        status: str,
        started_at: float,
        ended_at: float,
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        """Export the span of an ended execution, from its request to its last event."""
        own = {"noetl.execution_id": execution_id, "noetl.path": path, "noetl.status": status}
        attributes = {**(attributes or {}), **own}
        span = self.start_span(
            f"execution {path}", trace.id, _span_id(execution_id), trace.parent, attributes, started_at
        )
        if status != "success":
            _failed(span, status)
        span.end(int(ended_at * 1e9))

    def close(self) -> None:
        """Export pending spans."""
        self._provider.shutdown()

    def start_span(
        self,
        name: str,
        trace_id: int,
        span_id: int,
        parent: int | None,
        attributes: Mapping[str, Any],
        at: float | None = None,
    ) -> Span:
        """Start a span with these ids."""
        from opentelemetry.context import Context
        from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

        parent_context = Context()
        if parent is not None:
            parent_span = SpanContext(trace_id, parent, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
            parent_context = set_span_in_context(NonRecordingSpan(parent_span), parent_context)
        self._ids.next_ids = (trace_id, span_id)
        start = None if at is None else int(at * 1e9)
        return self._tracer.start_span(name, context=parent_context, attributes=attributes, start_time=start)


@contextmanager
def _current(
    trace: Trace, name: str, span_id: int, parent: int, attributes: Mapping[str, Any]
) -> Iterator[CurrentSpan]:
    """Make a span the current one for the duration of the block, then end it."""
    span = None
    if ACTIVE is not None and trace.sampled:
        span = ACTIVE.start_span(name, trace.id, span_id, parent, attributes)
    current = CurrentSpan(trace, span_id, span)
    token = _SPAN.set(current)
    try:
        yield current
    finally:
        _SPAN.reset(token)
        if span is not None:
            span.end()


def record_outcome(result: Outcome) -> Outcome:
    """Set status and error kind of a task's span, which is the current one; returns the outcome with its trace id."""
    current = _SPAN.get()
    if current is None or not current.trace.sampled:
        return result
    if current.span is not None:
        current.span.set_attribute("noetl.status", result.status)
        record_failure(result.error)
    return replace(result, meta={**result.meta, "trace_id": current.trace.text})


def record_failure(problem: ErrorInfo | None) -> None:
    """Mark the current span as failed, with the error kind only: the message may contain a secret."""
    current = _SPAN.get()
    if current is not None and current.span is not None and problem is not None:
        current.span.set_attribute("noetl.error.kind", problem.kind)
        _failed(current.span, problem.kind)


def _failed(span: Span, description: str) -> None:
    from opentelemetry.trace import Status, StatusCode

    span.set_status(Status(StatusCode.ERROR, description))


def _derived_ids() -> Any:
    from opentelemetry.sdk.trace.id_generator import IdGenerator

    class Derived(IdGenerator):
        """Returns the ids that `start_span` set just before the span is started, in the same thread."""

        next_ids = (0, 0)

        def generate_trace_id(self) -> int:
            return self.next_ids[0]

        def generate_span_id(self) -> int:
            return self.next_ids[1]

    return Derived()


def _span_id(about: str) -> int:
    return _hash("span", about, 8)


def _hash(kind: str, text: str, size: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"{kind} {text}".encode(), digest_size=size).digest(), "big") or 1
