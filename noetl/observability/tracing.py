"""OpenTelemetry traces of executions, steps and tasks; an extra (`noetl[otel]`), and nothing at all when it is off.

    execution  ── step ── task ── whatever a task calls over HTTP

An execution outlives processes, so its spans cannot be handed from one to the other. Their ids are derived
instead: a trace's from the execution (or from the `traceparent` its request came with, which is in the log), a
span's from the run it is about. So a worker knows the parent of its span without having been told, and
whichever server writes an execution's last event tells of the whole of it.

`ACTIVE` is None unless a process began to trace: callers look at it once and go on.
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
    """Whether this is a W3C trace context that names a trace and a span."""
    found = _TRACEPARENT.fullmatch(text)
    return found is not None and int(found[1], 16) != 0 and int(found[2], 16) != 0


def outgoing() -> str | None:
    """The `traceparent` of a request that is made here; None where nothing is traced."""
    span = _SPAN.get()
    if span is None:
        return None
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


def begin(kind: str, *, service: str, instance: str = "", stream: TextIO | None = None) -> None:
    """Trace this process from here on: `otlp`, `console`, or `off`."""
    if kind == "off":
        return
    try:
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter
    except ImportError:
        raise RequestRefused("traces need their library: pip install 'noetl[otel]', or set traces to off") from None
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


def end() -> None:
    """Send what waits, and trace no more."""
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
        """An execution that has ended, from its request to its last event."""
        span = self._start(
            f"execution {path}",
            trace_id=_trace_id(execution_id, trace),
            span_id=_span_id(execution_id),
            parent=_parsed(trace)[1] if trace else None,
            at=started_at,
            attributes={"noetl.execution_id": execution_id, "noetl.path": path, "noetl.status": status},
        )
        if status != "success":
            _failed(span, error or status)
        span.end(int(ended_at * 1e9))

    @contextmanager
    def run(self, execution_id: str, trace: str | None, run_id: str, step: str) -> Iterator[str]:
        """A run of a step (one iteration, if it loops) in this worker's hands; the id of its trace."""
        trace_id = _trace_id(execution_id, trace)
        attributes = {"noetl.execution_id": execution_id, "noetl.step": step, "noetl.run_id": run_id}
        span = self._start(f"step {step}", trace_id, _span_id(run_id), _span_id(execution_id), attributes)
        token = _SPAN.set(span)
        try:
            yield f"{trace_id:032x}"
        finally:
            _SPAN.reset(token)
            span.end()

    @contextmanager
    def task(self, task_run_id: str, label: str, kind: str, attempt: int) -> Iterator[Span]:
        """One call of a tool inside a run."""
        outer = _SPAN.get()
        assert outer is not None
        above = outer.get_span_context()
        attributes = {
            "noetl.task": label,
            "noetl.kind": kind,
            "noetl.task_run_id": task_run_id,
            "noetl.attempt": attempt,
        }
        span = self._start(f"task {label}", above.trace_id, _span_id(task_run_id), above.span_id, attributes)
        token = _SPAN.set(span)
        try:
            yield span
        finally:
            _SPAN.reset(token)
            span.end()

    def of_task(self, execution_id: str, trace: str | None, task_run_id: str) -> str:
        """The `traceparent` that a child execution of this task is given."""
        return f"00-{_trace_id(execution_id, trace):032x}-{_span_id(task_run_id):016x}-01"

    def close(self) -> None:
        """Send what waits."""
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

        above = Context()
        if parent is not None:
            known = SpanContext(trace_id, parent, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
            above = set_span_in_context(NonRecordingSpan(known), above)
        self._ids.following = (trace_id, span_id)
        start = None if at is None else int(at * 1e9)
        return self._tracer.start_span(name, context=above, attributes=attributes, start_time=start)


def outcome(span: Span, result: Outcome) -> None:
    """What became of a task."""
    span.set_attribute("noetl.status", result.status)
    if result.error is not None:
        span.set_attribute("noetl.error.kind", result.error.kind)
        _failed(span, result.error.kind)


def failed(problem: ErrorInfo | None) -> None:
    """The run that is being traced here ended with an error; its kind is told, its words may hold a secret."""
    span = _SPAN.get()
    if span is not None and problem is not None:
        span.set_attribute("noetl.error.kind", problem.kind)
        _failed(span, problem.kind)


def _failed(span: Span, words: str) -> None:
    from opentelemetry.trace import Status, StatusCode

    span.set_status(Status(StatusCode.ERROR, words))


def _derived_ids() -> Any:
    from opentelemetry.sdk.trace.id_generator import IdGenerator

    class Derived(IdGenerator):
        """Gives the ids that were decided just before the span is started (in the same thread, without a pause)."""

        following = (0, 0)

        def generate_trace_id(self) -> int:
            return self.following[0]

        def generate_span_id(self) -> int:
            return self.following[1]

    return Derived()


def _parsed(trace: str) -> tuple[int, int]:
    found = _TRACEPARENT.fullmatch(trace)
    assert found is not None, trace
    return int(found[1], 16), int(found[2], 16)


def _trace_id(execution_id: str, trace: str | None) -> int:
    return _parsed(trace)[0] if trace else _hashed("trace", execution_id, 16)


def _span_id(about: str) -> int:
    return _hashed("span", about, 8)


def _hashed(kind: str, text: str, size: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"{kind} {text}".encode(), digest_size=size).digest(), "big") or 1
