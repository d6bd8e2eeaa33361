"""The messages of the worker protocol between a server and remote workers.

Events are sent as `(name, version, body)`, since a body does not contain its type.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct, field

from noetl.core.model.events import Event, decode_body, encode_body
from noetl.core.model.excerpt import excerpt
from noetl.core.model.task_log import LogChunk
from noetl.core.model.work import Claim, Report, ReportAck, RunContext, RunOrder, SlotCount, WorkerName
from noetl.errors import RequestRefused

RunEpoch = tuple[str, int]


class WireEvent(Struct, frozen=True, array_like=True):
    """An event's name, version and body."""

    name: str
    version: int
    body: msgspec.Raw


class WireReport(Struct, frozen=True, array_like=True):
    """`work.Report` with its events encoded as in the log."""

    run_id: str
    epoch: int
    number: int
    events: list[WireEvent]


class ClaimRequest(Struct, frozen=True, omit_defaults=True):
    """Claim runs, waiting up to `wait` seconds; `slots` is the worker's total number of slots."""

    claim: Claim
    wait: float = 0.0
    slots: SlotCount = 0
    session: str = ""  # random text of the worker's process: nothing else may use the worker's name


class ExtendRequest(Struct, frozen=True, omit_defaults=True):
    """A heartbeat for these runs, which are all runs that the worker holds."""

    worker: WorkerName
    runs: list[RunEpoch]
    proofs: list[str] = field(default_factory=list)  # of the leases, in the same order
    session: str = ""  # of the worker's process


class RunsRequest(Struct, frozen=True, omit_defaults=True):
    """Runs that a worker returns; the tools of those in `begun` had begun."""

    worker: WorkerName
    runs: list[RunEpoch]
    begun: list[str] = field(default_factory=list)
    proofs: list[str] = field(default_factory=list)
    session: str = ""


class RevokedRequest(Struct, frozen=True):
    """Wait for revoked runs."""

    worker: WorkerName
    wait: float = 0.0
    session: str = ""


class RunsReply(Struct, frozen=True):
    """Runs whose lease the worker has lost."""

    lost: list[str]


class OrdersReply(Struct, frozen=True):
    """Orders whose `context.id` refers to one of `contexts`."""

    contexts: list[RunContext]
    orders: list[RunOrder]
    proofs: list[str] = field(default_factory=list)  # of the leases, to be presented in later requests


def _decoded(event: WireEvent) -> Event:
    try:
        return decode_body(event.name, event.version, bytes(event.body))
    except KeyError:
        raise RequestRefused(f"the event {excerpt(event.name)} of version {event.version} is unknown") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise RequestRefused(f"the event {event.name} is malformed: {problem}") from None


class ReportRequest(Struct, frozen=True, omit_defaults=True):
    """Events of several runs."""

    worker: WorkerName
    reports: list[WireReport]
    free: int = 0
    proofs: list[str] = field(default_factory=list)  # of the leases, in the order of the reports
    session: str = ""

    def decoded(self) -> list[Report]:
        """The reports with their events; RequestRefused if one is unknown or malformed."""
        return [
            Report(report.run_id, report.epoch, report.number, tuple(map(_decoded, report.events)))
            for report in self.reports
        ]


class ReportReply(Struct, frozen=True):
    """An acknowledgement of each report, and possibly the next runs."""

    acks: list[ReportAck] = field(name="verdicts")
    orders: OrdersReply


class LogsRequest(Struct, frozen=True):
    """Lines that tasks have printed. `number` counts the requests of a worker."""

    worker: WorkerName
    number: int
    chunks: list[LogChunk]
    runs: list[tuple[str, int]] = field(default_factory=list)  # a lease of each execution, current or ended
    proofs: list[str] = field(default_factory=list)
    session: str = ""


class SecretsRequest(Struct, frozen=True):
    """Request for the keychain values of a run."""

    execution_id: str
    names: list[str] = field(default_factory=list)
    worker: str = ""
    runs: list[RunEpoch] = field(default_factory=list)  # the worker's leases of this execution
    proofs: list[str] = field(default_factory=list)


class Refusal(Struct, frozen=True):
    """Why a request failed, with an HTTP status, for transports without a status of their own."""

    status: int
    detail: str


def encode_reports(reports: Sequence[Report]) -> list[WireReport]:
    """Encode reports for the protocol."""
    return [
        WireReport(
            report.run_id,
            report.epoch,
            report.number,
            [WireEvent(event.NAME, event.VERSION, msgspec.Raw(encode_body(event))) for event in report.events],
        )
        for report in reports
    ]


def pack_orders(orders: Sequence[RunOrder], proofs: Sequence[str] = ()) -> OrdersReply:
    """Orders with each context included once, and the proofs of their leases."""
    contexts: dict[str, RunContext] = {}
    named = []
    for order in orders:
        context = order.context
        contexts[context.id] = context
        stub = RunContext(context.id, context.playbook, context.execution_id, context.step, context.step_run_id)
        named.append(msgspec.structs.replace(order, context=stub))
    return OrdersReply(list(contexts.values()), named, list(proofs))


def unpack_orders(reply: OrdersReply) -> list[RunOrder]:
    """Orders with their contexts restored."""
    contexts: dict[str, Any] = {context.id: context for context in reply.contexts}
    return [msgspec.structs.replace(order, context=contexts[order.context.id]) for order in reply.orders]
