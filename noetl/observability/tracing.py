"""OpenTelemetry traces of executions, steps and tasks (extra `noetl-engine[otel]`).

    execution  ── step ── task ── HTTP calls of the task

An execution outlives processes, so its spans cannot be passed between them. Their ids are derived instead: the
trace id from the execution (or from the `traceparent` of its request, which is in the log), a span id from its
run. A worker thus knows the parent of its span without communication, and the server that writes the last event
of an execution exports its span.

`ACTIVE` is None unless the process traces; callers check it.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TextIO

from noetl.core.model.outcome import ErrorInfo, Outcome
from noetl.errors import RequestRefused

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

HEADER = "traceparent"
_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_SPAN: ContextVar[Any] = ContextVar("noetl_span", default=None)

ACTIVE: Tracing | None = None


def is_traceparent(text: str) -> bool:
    """Whether this is a valid W3C trace context with a trace id and a span id."""
    found = _TRACEPARENT.fullmatch(text)
    return found is not None and int(found[1], 16) != 0 and int(found[2], 16) != 0


def current_traceparent() -> str | None:
    """The `traceparent` header for an outgoing request; None if there is no current span."""
    span = _SPAN.get()
    if span is None:
        return None
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


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
        execution_id: str,
        trace: str | None,
        *,
        path: str,
        status: str,
        started_at: float,
        ended_at: float,
        error: str | None = None,
    ) -> None:
        """Export the span of an ended execution, from its request to its last event."""
        span = self._start(
            f"execution {path}",
            trace_id=_trace_id(execution_id, trace),
            span_id=_span_id(execution_id),
            parent=_parse(trace)[1] if trace else None,
            at=started_at,
            attributes={"noetl.execution_id": execution_id, "noetl.path": path, "noetl.status": status},
        )
        if status != "success":
            _failed(span, error or status)
        span.end(int(ended_at * 1e9))

    @contextmanager
    def run(self, execution_id: str, trace: str | None, run_id: str, step: str) -> Iterator[str]:
        """The span of a run of a step (of one iteration in a loop); yields the trace id."""
        trace_id = _trace_id(execution_id, trace)
        attributes = {"noetl.execution_id": execution_id, "noetl.step": step, "noetl.run_id": run_id}
        with _current(self._start(f"step {step}", trace_id, _span_id(run_id), _span_id(execution_id), attributes)):
            yield f"{trace_id:032x}"

    @contextmanager
    def task(self, task_run_id: str, label: str, kind: str, attempt: int) -> Iterator[Span]:
        """The span of one tool call inside a run."""
        outer = _SPAN.get()
        assert outer is not None
        parent_context = outer.get_span_context()
        attributes = {
            "noetl.task": label,
            "noetl.kind": kind,
            "noetl.task_run_id": task_run_id,
            "noetl.attempt": attempt,
        }
        span = self._start(
            f"task {label}", parent_context.trace_id, _span_id(task_run_id), parent_context.span_id, attributes
        )
        with _current(span):
            yield span

    def task_traceparent(self, execution_id: str, trace: str | None, task_run_id: str) -> str:
        """The `traceparent` for a child execution of this task."""
        return f"00-{_trace_id(execution_id, trace):032x}-{_span_id(task_run_id):016x}-01"

    def close(self) -> None:
        """Export pending spans."""
        self._provider.shutdown()

    def _start(
        self,
        name: str,
        trace_id: int,
        span_id: int,
        parent: int | None,
        attributes: Mapping[str, Any],
        at: float | None = None,
    ) -> Span:
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
def _current(span: Span) -> Iterator[None]:
    """Make a span the current one for the duration of the block, then end it."""
    token = _SPAN.set(span)
    try:
        yield
    finally:
        _SPAN.reset(token)
        span.end()


def record_outcome(span: Span, result: Outcome) -> None:
    """Set status and error kind of a task's span, which is the current one."""
    span.set_attribute("noetl.status", result.status)
    record_failure(result.error)


def record_failure(problem: ErrorInfo | None) -> None:
    """Mark the current span as failed, with the error kind only: the message may contain a secret."""
    span = _SPAN.get()
    if span is not None and problem is not None:
        span.set_attribute("noetl.error.kind", problem.kind)
        _failed(span, problem.kind)


def _failed(span: Span, description: str) -> None:
    from opentelemetry.trace import Status, StatusCode

    span.set_status(Status(StatusCode.ERROR, description))


def _derived_ids() -> Any:
    from opentelemetry.sdk.trace.id_generator import IdGenerator

    class Derived(IdGenerator):
        """Returns the ids that `_start` set just before the span is started, in the same thread."""

        next_ids = (0, 0)

        def generate_trace_id(self) -> int:
            return self.next_ids[0]

        def generate_span_id(self) -> int:
            return self.next_ids[1]

    return Derived()


def _parse(trace: str) -> tuple[int, int]:
    found = _TRACEPARENT.fullmatch(trace)
    assert found is not None, trace
    return int(found[1], 16), int(found[2], 16)


def _trace_id(execution_id: str, trace: str | None) -> int:
    return _parse(trace)[0] if trace else _hash("trace", execution_id, 16)


def _span_id(about: str) -> int:
    return _hash("span", about, 8)


def _hash(kind: str, text: str, size: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"{kind} {text}".encode(), digest_size=size).digest(), "big") or 1
