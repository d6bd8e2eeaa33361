"""Commands that inspect executions, locally or on a server, from their logs."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from noetl.cli.output.terminal import json_options, terminal
from noetl.cli.target import Target, with_target

if TYPE_CHECKING:
    from noetl.core.model.events import Event, Recorded
    from noetl.core.model.outcome import ErrorInfo
    from noetl.storage.ports.events import ExecutionSummary

STATUS_STYLES = {
    "success": "green",
    "failed": "red",
    "error": "red",
    "cancelled": "yellow",
    "skipped": "dim",
    "running": "cyan",
    "waiting": "yellow",
    "paused": "yellow",
}

_ORIGINS = (("rerun_of", "rerun of"), ("forked_from", "fork of"))

id_argument = click.argument("execution_id", metavar="ID")


@click.command()
@click.option(
    "--status",
    multiple=True,
    type=click.Choice(["pending", "running", "waiting", "paused", "success", "failed", "cancelled"]),
    help="Only executions with this status (may be repeated).",
)
@click.option("--path", help="Only executions of this playbook.")
@click.option(
    "--trigger", metavar="TEXT", help="Only executions that this started: `schedule`, `schedule NAME`, `user`, ..."
)
@click.option("--label", "labels", multiple=True, metavar="KEY[=VALUE]", help="Only with this label (may be repeated).")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="The greatest number of rows.")
@with_target
@json_options
def executions(
    status: tuple[str, ...],
    path: str | None,
    trigger: str | None,
    labels: tuple[str, ...],
    limit: int,
    target: Target,
    as_json: bool,
) -> None:
    """List executions, newest first."""

    async def listed() -> list[ExecutionSummary]:
        async with target.open() as backend:
            return await backend.executions(status=status, path=path, trigger=trigger, labels=labels, limit=limit)

    found = asyncio.run(listed())
    if as_json:
        from noetl.server.read_models.documents import summary_document

        terminal.json([summary_document(summary) for summary in found])
        return
    if not found:
        terminal.note("no executions")
        return
    terminal.table(
        ("id", "status", "path", "started", "took", "error"),
        [
            (s.execution_id, s.status, s.path, _when(s.started_at), _took(s.started_at, s.ended_at), s.error)
            for s in found
        ],
        styles=STATUS_STYLES,
    )


@click.command()
@id_argument
@with_target
@json_options
def status(execution_id: str, target: Target, as_json: bool) -> None:
    """Show the status of an execution, its steps and its error.

    With --json the document is that of `noetl run --json`.
    """

    async def find() -> Any:
        from noetl.cli.backend.base import find_execution

        async with target.open() as backend:
            summary = await find_execution(backend, execution_id)
            return await (backend.result if as_json else backend.execution)(summary.execution_id)

    found = asyncio.run(find())
    if as_json:
        terminal.json(found.document())
        return
    target.warn_if_orphaned(found["execution_id"], found["status"])
    rows = [("execution", found["execution_id"]), ("path", found["path"]), ("status", found["status"])]
    rows.append(("took" if found["ended_at"] else "runs for", _between(found) or "-"))
    if found["error"]:
        rows.append(("error", f"{found['error']['kind']}: {found['error']['message']}"))
    rows += [(text, found[name]) for name, text in _ORIGINS if found.get(name)]
    if found.get("compensation"):
        rows.append(("compensation", ", ".join(f"{count} {what}" for what, count in found["compensation"].items())))
    rows += [("waits", text) for text in found["waits_for"]]
    for name, value in rows:
        terminal.data(f"{name:<10} {terminal.colored_cell(value, STATUS_STYLES)}")
    if found["steps"]:
        terminal.data("")
        terminal.table(
            ("step", "status", "runs", "attempts", "iterations", "took", "error"),
            [
                (
                    row["step"],
                    row["status"],
                    row["runs"],
                    row["attempts"],
                    f"{row['iterations_done']}/{row['iterations']}" if row["iterations"] else None,
                    _between(row),
                    f"{row['error']['kind']}: {row['error']['message']}" if row["error"] else None,
                )
                for row in found["steps"]
            ],
            styles=STATUS_STYLES,
        )


@click.command()
@id_argument
@click.option("-f", "--follow", is_flag=True, help="Follow the log until the execution has ended.")
@click.option("--after", type=click.IntRange(min=0), default=0, metavar="SEQ", help="Only events after this one.")
@with_target
@json_options
def events(execution_id: str, follow: bool, after: int, target: Target, as_json: bool) -> None:
    """Print an execution's log; with --json one event per line."""

    def show(recorded: Recorded) -> None:
        from noetl.core.model.events import shown_envelope

        document = shown_envelope(recorded)
        if as_json:
            terminal.json_line(document)
        else:
            _print_event(recorded, document)
            if follow:
                sys.stdout.flush()  # for a reader of a pipe

    async def read() -> None:
        from noetl.cli.backend.base import find_execution

        async with target.open() as backend:
            summary = await find_execution(backend, execution_id)
            if follow:
                target.warn_if_orphaned(summary.execution_id, summary.status)
            async for recorded in (backend.follow if follow else backend.events)(summary.execution_id, after):
                show(recorded)

    asyncio.run(read())


@click.command()
@id_argument
@click.option("--at", type=click.IntRange(min=1), metavar="SEQ", help="The state after this event.")
@with_target
@json_options
def replay(execution_id: str, at: int | None, target: Target, as_json: bool) -> None:
    """Replay an execution's log and show the state.

    No template is rendered and no tool runs: the log has every decision. --at shows an earlier state.
    """

    async def read() -> Mapping[str, Any]:
        from noetl.cli.backend.base import find_execution

        async with target.open() as backend:
            summary = await find_execution(backend, execution_id)
            if at is not None and at > summary.seq:
                raise click.BadParameter(f"the log ends at event {summary.seq}", param_hint="--at")
            return await backend.state(summary.execution_id, at)

    document = asyncio.run(read())
    if as_json:
        terminal.json(document)
        return
    show_state(document)


@click.command()
@id_argument
@with_target
@json_options
def why(execution_id: str, target: Target, as_json: bool) -> None:
    """Explain the status of an execution.

    What it waits for or what ended it, and the path of its tokens.
    """

    async def explained() -> Mapping[str, Any]:
        from noetl.cli.backend.base import find_execution

        async with target.open() as backend:
            return await backend.why((await find_execution(backend, execution_id)).execution_id)

    found = asyncio.run(explained())
    if as_json:
        terminal.json(found)
        return
    target.warn_if_orphaned(found["execution_id"], found["status"])
    terminal.data(f"execution {found['execution_id']}: {found['summary']}")
    for title, lines in (("because", found["because"]), ("path", found["way"])):
        if lines:
            terminal.data(f"\n{title}")
        if title == "path" and found.get("way_omitted"):
            terminal.data(f"  ... (`noetl events {found['execution_id']}` prints the whole log)")
        for line in lines:
            terminal.data(f"  {line}")


def show_state(document: Mapping[str, Any]) -> None:
    """Print a state."""
    import msgspec

    def line(name: str, value: Any) -> None:
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        terminal.data(f"{name:<10} {terminal.colored_cell(text, STATUS_STYLES)}")

    line("execution", document["execution_id"])
    line("path", document["path"])
    line("event", f"{document['seq']} at {document['at']}")
    line("status", document["status"])
    line("workload", document["workload"])
    line("ctx", document["ctx"])
    for name in ("output", "error"):
        if document[name] is not None:
            line(name, document[name])
    sections: tuple[tuple[str, tuple[str, ...], list[dict[str, Any]]], ...] = (
        ("steps", ("step", "status", "runs", "open"), [{"step": k, **v} for k, v in document["steps"].items()]),
        ("waiting tokens", ("step", "from", "reason"), document["waiting"]),
        ("runs in flight", ("run_id", "status", "task", "worker"), document["runs"]),
        ("loops", ("run_id", "count", "finished", "failed"), document["loops"]),
        ("children", ("run_id", "path", "execution_id"), document["children"]),
        ("waits", ("run_id", "task", "signal", "title", "since", "due"), document["waits"]),
    )
    for title, heads, rows in sections:
        if rows:
            terminal.data(f"\n{title}")
            terminal.table(heads, [[row.get(head) for head in heads] for row in rows], styles=STATUS_STYLES)


# ── formatting ──────────────────────────────────────────────────────────────────────────


def _print_event(recorded: Recorded, document: dict[str, Any]) -> None:
    """Print an event as a line: seq, time, name, status, step and task, details."""
    owner = document["step"] or ""
    if document["iteration_index"] is not None:
        owner += "/" + document["iteration_id"].rpartition("/")[2]
    if document["task_label"]:
        owner += f".{document['task_label']}"
    status = terminal.colored_cell(document["status"], STATUS_STYLES, width=11)
    line = f"{document['seq']:>5}  {document['timestamp'][11:23]}  {document['name']:<28}  {status}  {owner:<24}"
    terminal.data(f"{line}  {event_details(recorded.body)}".rstrip())


def _wait_of(body: Event) -> str:
    waiting = getattr(body, "waiting", None)
    return "" if waiting is None else " waits" if waiting else " runs"


def event_details(body: Event) -> str:
    """The most important fields of an event as text."""
    from noetl.core.model import events as ev
    from noetl.core.model.playbook import target_name

    match body:
        case ev.ExecutionRequested():
            return body.path
        case ev.LoopStarted():
            return f"{body.count} iterations, {body.max_in_flight} in flight"
        case ev.LoopDone():
            return f"{body.succeeded} succeeded, {body.failed} failed, {body.skipped} skipped"
        case ev.NextEvaluated():
            taken = [arc.target for arc in body.arcs if arc.token]
            return _error(body.error) or ("-> " + ", ".join(taken) if taken else "no arc")
        case ev.CtxPatched():
            return ", ".join(target_name(key).removeprefix("ctx.") for key in body.patch)
        case ev.StateCommitted():
            return ", ".join(f"state.{key}" for key in body.values)
        case ev.TaskDone():
            action = {"retry": f"retry in {body.delay:g} s", "jump": f"jump to {body.to}"}.get(body.do, body.do)
            return "; ".join(filter(None, (_error(body.outcome.error), "" if body.do == "continue" else action)))
        case ev.StepDone() | ev.StepFailed() | ev.IterationDone() | ev.IterationFailed():
            return _error(body.output.error)
        case ev.ChildStarted() | ev.ChildWaiting() | ev.ChildFinished():
            return f"execution {body.child}{_wait_of(body)}"
        case ev.WorkflowFinished():
            return _error(body.error) or body.outcome
        case ev.TokenParked() | ev.StepSkipped() | ev.ExecutionCancelled() | ev.ReportRefused():
            return body.reason
        case ev.RequestEvaluated() | ev.WorkflowSynthesized():
            return _error(body.error)
        case ev.CompensationStarted() | ev.CompensationDone():
            return body.run_id + (" not needed" if isinstance(body, ev.CompensationDone) and body.skipped else "")
        case ev.CompensationFailed():
            return f"{body.run_id} {_error(body.error)}"
        case _:
            return _wait_details(body)


def _wait_details(body: Event) -> str:
    """The same for waits and signals."""
    from noetl.core.model import events as ev

    match body:
        case ev.WaitStarted():
            if body.quota is not None:
                return f"quota {body.quota.key} until {ev.instant(body.until or 0.0)[:19]}Z"
            what = [f"signal {body.signal}"] if body.signal is not None else []
            what += [f"{body.for_s:g} s"] if body.for_s is not None else []
            what += [ev.instant(body.until)[:19] + "Z"] if body.until is not None else []
            return " or ".join(what) + (f": {body.title}" if body.title else "")
        case ev.WaitFinished():
            return _error(body.outcome.error)
        case ev.SignalReceived():
            return body.name
        case ev.SignalRefused():
            return f"{body.name}: {body.reason}"
        case _:
            return ""


def _error(error: ErrorInfo | None) -> str:
    return f"{error.kind}: {' '.join(error.message.split())}" if error else ""


def _when(at: float | None) -> str | None:
    from datetime import datetime

    return None if at is None else datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _took(start: float | None, end: float | None) -> str | None:
    from noetl.cli.output.display import duration

    return None if start is None else duration(max(0.0, (end or time.time()) - start))


def _between(document: Mapping[str, Any]) -> str | None:
    """The time between the start and the end of a document."""
    from noetl.core.model.events import seconds

    start, end = document["started_at"], document["ended_at"]
    return _took(seconds(start), seconds(end) if end else None) if start else None
