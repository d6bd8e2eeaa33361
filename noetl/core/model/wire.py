"""The work protocol's messages: what a worker on another machine sends and is sent.

Events are carried as `(name, version, body)`, since a body alone does not say what it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct, field

from noetl.core.model.events import decode_body, encode_body
from noetl.core.model.work import Claim, Report, ReportAck, RunContext, RunOrder

RunEpoch = tuple[str, int]


class WireEvent(Struct, frozen=True, array_like=True):
    """An event's name, version and body."""

    name: str
    version: int
    body: msgspec.Raw


class WireReport(Struct, frozen=True, array_like=True):
    """`work.Report` with its events as they lie in the log."""

    run_id: str
    epoch: int
    number: int
    events: list[WireEvent]


class ClaimRequest(Struct, frozen=True, omit_defaults=True):
    """A worker asks for runs, and waits up to `wait` seconds; `slots` is what it has in all."""

    claim: Claim
    wait: float = 0.0
    slots: int = 0


class ExtendRequest(Struct, frozen=True):
    """A sign of life for these runs, which are all that the worker holds."""

    worker: str
    runs: list[RunEpoch]


class RunsRequest(Struct, frozen=True):
    """Runs a worker lets go of."""

    worker: str
    runs: list[RunEpoch]


class RevokedRequest(Struct, frozen=True):
    """A worker waits to hear of runs that were taken away."""

    worker: str
    wait: float = 0.0


class RunsReply(Struct, frozen=True):
    """Runs that are no longer this worker's."""

    lost: list[str]


class OrdersReply(Struct, frozen=True):
    """Orders whose `context.id` names one of `contexts`."""

    contexts: list[RunContext]
    orders: list[RunOrder]


class ReportRequest(Struct, frozen=True, omit_defaults=True):
    """Events of several runs."""

    worker: str
    reports: list[WireReport]
    free: int = 0

    def decoded(self) -> list[Report]:
        """The reports with their events; an unknown event is a KeyError."""
        return [
            Report(
                report.run_id,
                report.epoch,
                report.number,
                tuple(decode_body(event.name, event.version, bytes(event.body)) for event in report.events),
            )
            for report in self.reports
        ]


class ReportReply(Struct, frozen=True):
    """A verdict on each report, and perhaps the next runs."""

    verdicts: list[ReportAck]
    orders: OrdersReply


class SecretsRequest(Struct, frozen=True):
    """Keychain values a run needs."""

    execution_id: str
    names: list[str] = field(default_factory=list)


class Refusal(Struct, frozen=True):
    """Why a question was not answered, where the carrier itself has no status: as HTTP would say it."""

    status: int
    detail: str


def wire_reports(reports: Sequence[Report]) -> list[WireReport]:
    """Reports as they are sent."""
    return [
        WireReport(
            report.run_id,
            report.epoch,
            report.number,
            [WireEvent(event.NAME, event.VERSION, msgspec.Raw(encode_body(event))) for event in report.events],
        )
        for report in reports
    ]


def packed(orders: Sequence[RunOrder]) -> OrdersReply:
    """Orders with each context sent once."""
    contexts: dict[str, RunContext] = {}
    named = []
    for order in orders:
        context = order.context
        contexts[context.id] = context
        stub = RunContext(context.id, context.playbook, context.execution_id, context.step, context.step_run_id)
        named.append(msgspec.structs.replace(order, context=stub))
    return OrdersReply(list(contexts.values()), named)


def unpacked(reply: OrdersReply) -> list[RunOrder]:
    """Orders with their contexts put back."""
    contexts: dict[str, Any] = {context.id: context for context in reply.contexts}
    return [msgspec.structs.replace(order, context=contexts[order.context.id]) for order in reply.orders]
