"""What a process counts, and how it is told to Prometheus.

Counters and histograms of a process are the names at the end of this file: whoever does the thing counts it there,
with one addition and no lock on its way (the few that several threads write are guarded). Gauges are
asked for when somebody scrapes: a process that serves them gives functions that know the value now.

`TABLE` is the whole list; the reference page is written from it, and a metric that is not there cannot be made.
Labels have few values: never an execution, a path of a playbook or a worker's name.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from msgspec import Struct

Kind = Literal["counter", "gauge", "histogram"]
Sample = tuple[tuple[str, ...], float]  # label values, value
Asked = Callable[[], Iterable[Sample]]

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
COUNTS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
MOST_SERIES = 500  # of one metric: a label that grows is a mistake, and must not grow with it


class Metric(Struct, frozen=True):
    """One line of the table."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


TABLE: dict[str, Metric] = {}


class Counter:
    """A number that only grows, by label values."""

    __slots__ = ("_values", "metric")

    def __init__(self, name: str, help: str, *labels: str) -> None:
        self.metric = _declare(Metric(name, "counter", help, labels))
        self._values: dict[tuple[str, ...], float] = {} if labels else {(): 0.0}

    def add(self, amount: float = 1, *labels: str) -> None:
        """So many more."""
        known = self._values.get(labels)
        if known is None:
            if len(self._values) >= MOST_SERIES:
                labels = ("other",) * len(labels)
            known = self._values.get(labels, 0.0)
        self._values[labels] = known + amount

    def value(self, *labels: str) -> float:
        """How many so far."""
        return self._values.get(labels, 0.0)

    def total(self) -> float:
        """How many so far, whatever the labels."""
        return sum(self._values.values())

    def samples(self) -> list[Sample]:
        """Every series."""
        return sorted(self._values.items())


class Histogram:
    """How long, or how many at once: counted into buckets; may be written by several threads."""

    __slots__ = ("_counts", "_lock", "_sum", "metric")

    def __init__(self, name: str, help: str, buckets: Sequence[float] = SECONDS) -> None:
        self.metric = _declare(Metric(name, "histogram", help, (), tuple(buckets)))
        self._counts = [0] * (len(buckets) + 1)
        self._sum = 0.0
        self._lock = threading.Lock()

    def observe(self, value: float) -> None:
        """One more."""
        place = bisect_left(self.metric.buckets, value)
        with self._lock:
            self._counts[place] += 1
            self._sum += value

    def snapshot(self) -> tuple[list[int], float]:
        """Counts by bucket (not yet added up), and the sum of all values."""
        with self._lock:
            return list(self._counts), self._sum

    @property
    def count(self) -> int:
        """How many were observed."""
        return sum(self.snapshot()[0])


class Last:
    """A value that is set where it changes."""

    __slots__ = ("metric", "value")

    def __init__(self, name: str, help: str) -> None:
        self.metric = _declare(Metric(name, "gauge", help))
        self.value = 0.0


def gauge(name: str, help: str, *labels: str) -> Metric:
    """A value that is asked for when somebody scrapes."""
    return _declare(Metric(name, "gauge", help, labels))


def _declare(metric: Metric) -> Metric:
    assert metric.name not in TABLE, f"two metrics are called {metric.name}"
    TABLE[metric.name] = metric
    return metric


# ── telling ─────────────────────────────────────────────────────────────────────────────


def page(asked: Mapping[str, Iterable[Sample]]) -> bytes:
    """The text Prometheus reads: what this process counted, and the values of `asked` (gauge -> samples)."""
    lines: list[str] = []
    for name, metric in TABLE.items():
        counted = _COUNTED.get(name)
        if isinstance(counted, Histogram):
            rows = _histogram(counted)
        elif isinstance(counted, Counter):
            rows = [_row(name, metric.labels, values, number) for values, number in counted.samples()]
        elif isinstance(counted, Last):
            rows = [_row(name, (), (), counted.value)]
        else:
            rows = [_row(name, metric.labels, values, number) for values, number in asked.get(name, ())]
        if rows:
            lines += [f"# HELP {name} {_escaped_help(metric.help)}", f"# TYPE {name} {metric.kind}", *rows]
    return ("\n".join(lines) + "\n").encode()


def _histogram(histogram: Histogram) -> list[str]:
    metric = histogram.metric
    counts, total = histogram.snapshot()
    rows = []
    so_far = 0
    for bound, count in zip((*metric.buckets, float("inf")), counts, strict=True):
        so_far += count
        rows.append(_row(f"{metric.name}_bucket", ("le",), (_number(bound),), so_far))
    return [*rows, _row(f"{metric.name}_sum", (), (), total), _row(f"{metric.name}_count", (), (), so_far)]


def _row(name: str, labels: Sequence[str], values: Sequence[str], number: float) -> str:
    inside = ",".join(f'{label}="{_escaped(value)}"' for label, value in zip(labels, values, strict=True))
    return f"{name}{{{inside}}} {_number(number)}" if inside else f"{name} {_number(number)}"


def _number(number: float) -> str:
    if number == float("inf"):
        return "+Inf"
    return str(int(number)) if number == int(number) and abs(number) < 2**53 else repr(float(number))


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _escaped_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


# ── what is counted where it happens ────────────────────────────────────────────────────

STARTED = Counter("noetl_executions_started_total", "Executions this server began.")
ENDED = Counter("noetl_executions_ended_total", "Executions whose last event this server wrote.", "status")
EVENTS = Counter("noetl_events_appended_total", "Events this server wrote to the log and flushed.")
PROGRESS = Last(
    "noetl_last_progress_timestamp_seconds",
    "When this server last wrote an event, or began to serve; compare it with the clock while executions run.",
)
FLUSH = Histogram("noetl_flush_seconds", "One transaction of the store, from its begin until it is on disk.")
BATCH = Histogram("noetl_flush_writes", "Writes that shared one transaction and its flush.", COUNTS)
STORE_FAILURES = Counter("noetl_store_failures_total", "Transactions of the store that could not be written.")
CONFLICTS = Counter(
    "noetl_append_conflicts_total", "Appends that came second and were decided again; normal with several servers."
)
DECISION = Histogram("noetl_decision_seconds", "Time the engine took to decide on a batch of facts, without I/O.")
REPORTS = Counter("noetl_reports_total", "Reports of workers, by what became of them.", "verdict")
CLAIMED = Counter("noetl_runs_claimed_total", "Runs that were leased to a worker.")
EXPIRED = Counter("noetl_leases_expired_total", "Leases that were taken back because their worker fell silent.")
RINGS = Counter("noetl_timers_due_total", "Timers that came due.")
LATENESS = Histogram("noetl_timer_lateness_seconds", "How late a timer rang.")
RECOVERED = Counter("noetl_executions_recovered_total", "Unfinished executions that this server took over.")
COLLECTED = Counter("noetl_results_collected_total", "Stored results that were deleted because their ttl had passed.")
DROPPED = Counter("noetl_executions_dropped_total", "Ended executions that retention removed.")
REQUESTS = Counter("noetl_http_requests_total", "Requests, by route and status.", "method", "route", "status")
REQUEST = Histogram("noetl_http_request_seconds", "Time to the first byte of an answer, without long polls.")

_COUNTED: dict[str, Counter | Histogram | Last] = {
    each.metric.name: each for each in list(globals().values()) if isinstance(each, Counter | Histogram | Last)
}

# ── what is asked for ───────────────────────────────────────────────────────────────────

INFO = gauge("noetl_info", "Always 1; the version is a label.", "version")
READY = gauge("noetl_ready", "1 while progress is possible, as /readyz says.")
EXECUTIONS = gauge(
    "noetl_executions", "Executions in the store, by status; counted every 15 seconds at most.", "status"
)
QUEUED = gauge("noetl_queue_runs", "Runs that wait for a worker, by pool.", "pool")
OLDEST = gauge("noetl_queue_oldest_seconds", "How long the longest waiting run of a pool has waited.", "pool")
LINES = gauge("noetl_waiting_runs", "Runs that wait because a limit is reached, by limit.", "limit")
LINES_OLDEST = gauge("noetl_waiting_oldest_seconds", "How long the first of them has waited, by limit.", "limit")
LIMITS = gauge("noetl_limit", "How many may be held at once, by limit.", "limit")
LIMITS_HELD = gauge("noetl_limit_held", "How many are held now, by limit.", "limit")
LEASES = gauge("noetl_leases_held", "Runs in the hands of workers, as this server knows it.")
WORKERS = gauge("noetl_workers", "Workers this server heard of in the last minute, by pool.", "pool")
SLOTS = gauge("noetl_worker_slots", "Runs those workers can work on at once, by pool.", "pool")
TIMERS = gauge("noetl_timers_waiting", "Executions that wait for an instant.")
LOADED = gauge("noetl_executions_loaded", "Executions this server has in memory.")
STREAMS = gauge("noetl_stream_subscribers", "Open event streams.")
MEMORY = gauge("process_resident_memory_bytes", "Memory of this process.")
CPU = _declare(Metric("process_cpu_seconds_total", "counter", "Processor time of this process."))
FILES = gauge("process_open_fds", "Open files and sockets of this process.")
BEGAN = gauge("process_start_time_seconds", "When this process began to serve.")
