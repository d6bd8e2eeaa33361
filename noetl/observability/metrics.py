"""Metrics of a process, and their exposition in the Prometheus text format.

The counters, histograms and gauges at the end of this file are updated where the event happens. A counter takes no
lock; histograms are written by several threads and have one. Other gauges are collected when the metrics are scraped.

`TABLE` lists every metric; the reference page is generated from it. Labels have few values: never an execution, the
path of a playbook or the name of a worker.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from msgspec import Struct

Kind = Literal["counter", "gauge", "histogram"]
Sample = tuple[tuple[str, ...], float]  # label values, value

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
COUNTS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
MAX_SERIES = 500  # of one metric: an unbounded label is a bug, and must not use unbounded memory


class Metric(Struct, frozen=True):
    """The declaration of a metric."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


TABLE: dict[str, Metric] = {}


class Counter:
    """A value that only increases, per label values."""

    __slots__ = ("_values", "metric")

    def __init__(self, name: str, help: str, *labels: str) -> None:
        self.metric = _declare(Metric(name, "counter", help, labels))
        self._values: dict[tuple[str, ...], float] = {} if labels else {(): 0.0}

    def add(self, amount: float = 1, *labels: str) -> None:
        """Increase the counter; above `MAX_SERIES` series, the one with the labels `other`."""
        known = self._values.get(labels)
        if known is None:
            if len(self._values) >= MAX_SERIES:
                labels = ("other",) * len(labels)
            known = self._values.get(labels, 0.0)
        self._values[labels] = known + amount

    def value(self, *labels: str) -> float:
        """The value of one series."""
        return self._values.get(labels, 0.0)

    def total(self) -> float:
        """The sum of all series."""
        return sum(self._values.values())

    def samples(self) -> list[Sample]:
        """Every series."""
        return sorted(self._values.items())


class Histogram:
    """A distribution of values in buckets; thread-safe."""

    __slots__ = ("_counts", "_lock", "_sum", "metric")

    def __init__(self, name: str, help: str, buckets: Sequence[float] = SECONDS) -> None:
        self.metric = _declare(Metric(name, "histogram", help, (), tuple(buckets)))
        self._counts = [0] * (len(buckets) + 1)
        self._sum = 0.0
        self._lock = threading.Lock()

    def observe(self, value: float) -> None:
        """Record a value."""
        index = bisect_left(self.metric.buckets, value)
        with self._lock:
            self._counts[index] += 1
            self._sum += value

    def snapshot(self) -> tuple[list[int], float]:
        """Counts per bucket, not cumulative, and the sum of all values."""
        with self._lock:
            return list(self._counts), self._sum

    @property
    def count(self) -> int:
        """The number of recorded values."""
        return sum(self.snapshot()[0])


class Gauge:
    """A value that is set where it changes."""

    __slots__ = ("metric", "value")

    def __init__(self, name: str, help: str) -> None:
        self.metric = _declare(Metric(name, "gauge", help))
        self.value = 0.0


def scraped_gauge(name: str, help: str, *labels: str) -> Metric:
    """Declare a gauge whose value is collected when the metrics are scraped."""
    return _declare(Metric(name, "gauge", help, labels))


def _declare(metric: Metric) -> Metric:
    assert metric.name not in TABLE, f"duplicate metric {metric.name}"
    TABLE[metric.name] = metric
    return metric


# ── exposition ──────────────────────────────────────────────────────────────────────────


def exposition(gauges: Mapping[str, Iterable[Sample]]) -> bytes:
    """All metrics in the text format; `gauges` has the samples of the collected gauges by name."""
    lines: list[str] = []
    for name, metric in TABLE.items():
        recorded = _RECORDED.get(name)
        if isinstance(recorded, Histogram):
            rows = _histogram(recorded)
        elif isinstance(recorded, Counter):
            rows = [_row(name, metric.labels, values, number) for values, number in recorded.samples()]
        elif isinstance(recorded, Gauge):
            rows = [_row(name, (), (), recorded.value)]
        else:
            rows = [_row(name, metric.labels, values, number) for values, number in gauges.get(name, ())]
        if rows:
            lines += [f"# HELP {name} {_escape_help(metric.help)}", f"# TYPE {name} {metric.kind}", *rows]
    return ("\n".join(lines) + "\n").encode()


def _histogram(histogram: Histogram) -> list[str]:
    metric = histogram.metric
    counts, total = histogram.snapshot()
    rows = []
    cumulative = 0
    for bound, count in zip((*metric.buckets, float("inf")), counts, strict=True):
        cumulative += count
        rows.append(_row(f"{metric.name}_bucket", ("le",), (_number(bound),), cumulative))
    return [*rows, _row(f"{metric.name}_sum", (), (), total), _row(f"{metric.name}_count", (), (), cumulative)]


def _row(name: str, labels: Sequence[str], values: Sequence[str], number: float) -> str:
    pairs = ",".join(f'{label}="{_escape(value)}"' for label, value in zip(labels, values, strict=True))
    return f"{name}{{{pairs}}} {_number(number)}" if pairs else f"{name} {_number(number)}"


def _number(number: float) -> str:
    if number == float("inf"):
        return "+Inf"
    return str(int(number)) if number == int(number) and abs(number) < 2**53 else repr(float(number))


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _escape_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


# ── updated where the event happens ─────────────────────────────────────────────────────

STARTED = Counter("noetl_executions_started_total", "Executions that this server started.")
ENDED = Counter("noetl_executions_ended_total", "Executions whose last event this server wrote.", "status")
DELIVERIES = Counter(
    "noetl_deliveries_total",
    "Deliveries of triggers that this server started, skipped or failed to start.",
    "kind",
    "status",
)
NOTIFICATIONS = Counter("noetl_notifications_total", "Occurrences of notification rules, by result.", "status")
LINEAGE = Counter(
    "noetl_lineage_total",
    "Executions with datasets whose OpenLineage events this server `sent` or `dropped`.",
    "status",
)
EVENTS = Counter("noetl_events_appended_total", "Events this server wrote to the log and flushed.")
PROGRESS = Gauge(
    "noetl_last_progress_timestamp_seconds",
    "Time of the last event that this server wrote, or of its start; compare it with the clock while executions run.",
)
FLUSH = Histogram("noetl_flush_seconds", "Duration of one transaction of the store, until it is durable.")
BATCH = Histogram("noetl_flush_writes", "Writes that shared one transaction and its flush.", COUNTS)
STORE_FAILURES = Counter("noetl_store_failures_total", "Transactions of the store that could not be written.")
CONFLICTS = Counter(
    "noetl_append_conflicts_total",
    "Appends that conflicted with another writer and were decided again; normal with several servers.",
)
REPLICA_READS = Counter(
    "noetl_replica_reads_total",
    "Lists that a replica may read, by result: read by the `replica`, or by the primary because the replica was "
    "`not usable` (behind, failed), was not tried again yet (`paused`) or `cancelled` the query.",
    "result",
)
REPLICA_WAIT = Histogram("noetl_replica_wait_seconds", "Time until the replica had replayed the primary's position.")
DEFECTS = Counter(
    "noetl_decision_defects_total",
    "Decisions that raised an exception. Each is a defect: the log has the traceback, and the execution fails.",
)
DECISION = Histogram("noetl_decision_seconds", "Duration of one decision of the engine, without I/O.")
REPORTS = Counter("noetl_reports_total", "Reports of workers, by result.", "verdict")
CLAIMED = Counter("noetl_runs_claimed_total", "Runs that were leased to a worker.")
EXPIRED = Counter("noetl_leases_expired_total", "Leases that expired because their worker sent no heartbeat.")
TIMERS_DUE = Counter("noetl_timers_due_total", "Timers that came due.")
LATENESS = Histogram("noetl_timer_lateness_seconds", "Delay of timers after their due time.")
RECOVERED = Counter("noetl_executions_recovered_total", "Unfinished executions that this server took over.")
COLLECTED = Counter("noetl_results_collected_total", "Stored results that were deleted because their ttl had passed.")
LOG_LINES = Counter("noetl_task_log_lines_total", "Lines of tasks that were stored.")
LOG_LINES_DROPPED = Counter("noetl_task_log_lines_dropped_total", "Lines of tasks that were dropped.")
DROPPED = Counter("noetl_executions_dropped_total", "Ended executions that retention removed.")
CLOCK_SKEW = Gauge("noetl_clock_skew_seconds", "How far the clock of this server is ahead of that of the database.")
REQUESTS = Counter("noetl_http_requests_total", "Requests, by route and status.", "method", "route", "status")
REQUEST = Histogram("noetl_http_request_seconds", "Time to the first byte of a response, without long polls.")

_RECORDED: dict[str, Counter | Histogram | Gauge] = {
    each.metric.name: each for each in list(globals().values()) if isinstance(each, Counter | Histogram | Gauge)
}

# ── collected when scraped ──────────────────────────────────────────────────────────────

scraped_gauge("noetl_info", "Always 1; the version is a label.", "version")
scraped_gauge("noetl_ready", "1 while the server is ready (`/readyz`).")
scraped_gauge("noetl_executions", "Executions in the store, by status; counted every 15 seconds at most.", "status")
scraped_gauge("noetl_queue_runs", "Runs that wait for a worker, by pool.", "pool")
scraped_gauge("noetl_queue_oldest_seconds", "How long the longest waiting run of a pool has waited.", "pool")
scraped_gauge("noetl_waiting_runs", "Runs that wait because a limit is reached, by limit.", "limit")
scraped_gauge("noetl_waiting_oldest_seconds", "How long the first of them has waited, by limit.", "limit")
scraped_gauge("noetl_limit", "How many may be held at once, by limit.", "limit")
scraped_gauge("noetl_limit_held", "How many are held now, by limit.", "limit")
scraped_gauge("noetl_leases_held", "Runs that are leased to workers, as known to this server.")
scraped_gauge("noetl_workers", "Workers that sent a request to this server in the last minute, by pool.", "pool")
scraped_gauge("noetl_worker_slots", "Slots of these workers, by pool.", "pool")
scraped_gauge("noetl_timers_waiting", "Executions that wait for an instant.")
scraped_gauge("noetl_executions_loaded", "Executions this server has in memory.")
scraped_gauge("noetl_stream_subscribers", "Open event streams.")
scraped_gauge("process_resident_memory_bytes", "Memory of this process.")
_declare(Metric("process_cpu_seconds_total", "counter", "Processor time of this process."))
scraped_gauge("process_open_fds", "Open files and sockets of this process.")
scraped_gauge("process_start_time_seconds", "Time at which this process started to serve.")
