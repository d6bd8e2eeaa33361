"""`noetl rerun`, `fork` and `compare`: run an execution again in whole or in part, and compare two executions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from noetl.cli.executions.inspect import STATUS_STYLES, id_argument
from noetl.cli.output.terminal import json_options, terminal
from noetl.cli.run import run_locally, run_remotely, timeout_option, wait_option
from noetl.cli.target import Target, key_option, with_target

if TYPE_CHECKING:
    from noetl.embedded import LocalEngine

payload_option = click.option(
    "--payload", metavar="JSON|@FILE", help="Merged over the execution's payload; @- is stdin."
)
set_option = click.option(
    "--set", "sets", multiple=True, metavar="a.b=VALUE", help="One value of the workload, read as YAML."
)
version_option = click.option(
    "--version", metavar="V", help="Use this version of the playbook; `latest`: the newest one. Default: the same text."
)
dry_run_option = click.option("--dry-run", is_flag=True, help="Show what would run and what is kept; start nothing.")


@click.command()
@id_argument
@click.option("--from", "from_step", metavar="STEP", help="Start at this step and keep the results before it.")
@click.option("--failed", is_flag=True, help="Start at what failed; keep other results and finished iterations.")
@version_option
@payload_option
@set_option
@dry_run_option
@timeout_option
@wait_option
@key_option
@with_target
@json_options
def rerun(
    execution_id: str,
    from_step: str | None,
    failed: bool,
    version: str | None,
    payload: str | None,
    sets: tuple[str, ...],
    target: Target,
    as_json: bool,
    **how: Any,
) -> int:
    """Run an execution's playbook again, as a whole or in part.

    This starts a new execution with the same text and payload, unless others are given. What is kept of the earlier one
    is shown before it starts. An execution of this machine runs in this process until it ends; one of a server runs
    there.
    """
    from noetl.cli.inputs import read_payload

    if failed and from_step is not None:
        raise click.UsageError("give --from or --failed, not both")
    fields = {"from_step": from_step, "failed": failed, "version": version, "merge": read_payload(payload, sets)}
    return _start_again(target, execution_id, fields, as_json, **how)


@click.command()
@id_argument
@click.option("--at", type=click.IntRange(min=1), required=True, metavar="SEQ", help="Event of the log to start from.")
@version_option
@payload_option
@set_option
@dry_run_option
@timeout_option
@wait_option
@key_option
@with_target
@json_options
def fork(
    execution_id: str,
    at: int,
    version: str | None,
    payload: str | None,
    sets: tuple[str, ...],
    target: Target,
    as_json: bool,
    **how: Any,
) -> int:
    """Start a new execution from an event of another one.

    It has the results and the ctx after that event; steps that were open then start again, and loops keep their
    finished iterations. `noetl events ID` shows the events.
    """
    from noetl.cli.inputs import read_payload

    fields = {"at": at, "version": version, "merge": read_payload(payload, sets)}
    return _start_again(target, execution_id, fields, as_json, **how)


def _start_again(
    target: Target,
    execution_id: str,
    fields: dict[str, Any],
    as_json: bool,
    *,
    dry_run: bool,
    timeout: float | None,
    wait: bool,
) -> int:
    remote = target.is_remote(target.settings())
    plan, found = asyncio.run(_plan(target, execution_id, fields, remote))
    if dry_run:
        terminal.json(plan) if as_json else terminal.data(_described(plan))
        return 0
    terminal.note(f"{'fork' if 'at' in fields else 'rerun'} of {found}: {_described(plan)}")
    if remote:
        options = {name: value for name, value in fields.items() if name not in ("at", "from_step")}
        if "at" in fields:
            return asyncio.run(
                run_remotely(lambda client: client.fork(found, fields["at"], **options), target, timeout, wait, as_json)
            )
        return asyncio.run(
            run_remotely(
                lambda client: client.rerun(found, fields["from_step"], **options), target, timeout, wait, as_json
            )
        )
    if not wait:
        raise click.UsageError("--no-wait requires a server: an execution of this machine runs in this process")

    async def begin(engine: LocalEngine) -> str:
        from noetl.cli.backend.local import idempotency_key
        from noetl.server.orchestrator.submissions import RerunRequest

        return await engine.orchestrator.rerun(RerunRequest(found, **fields), key=idempotency_key() or None)

    return asyncio.run(run_locally(begin, target.store, timeout, as_json))


async def _plan(target: Target, execution_id: str, fields: dict[str, Any], remote: bool) -> tuple[dict[str, Any], str]:
    """What would run, and the id of the earlier execution."""
    from noetl.cli.backend.base import find_execution
    from noetl.cli.backend.local import LocalBackend
    from noetl.cli.backend.remote import RemoteBackend

    async with target.open() as backend:
        found = (await find_execution(backend, execution_id)).execution_id
        if remote:
            assert isinstance(backend, RemoteBackend)
            options = {name: value for name, value in fields.items() if name not in ("at", "from_step")}
            if "at" in fields:
                return await asyncio.to_thread(backend.client.plan_fork, found, fields["at"], **options), found
            return await asyncio.to_thread(backend.client.plan_rerun, found, fields["from_step"], **options), found
        assert isinstance(backend, LocalBackend)
        return await backend.plan_rerun(found, fields), found


def _described(plan: dict[str, Any]) -> str:
    from msgspec import convert

    from noetl.server.orchestrator.rerun import RerunPlan

    return convert(plan, RerunPlan).describe()


@click.command()
@click.argument("execution_id", metavar="ID")
@click.argument("other", metavar="ID")
@with_target
@json_options
def compare(execution_id: str, other: str, target: Target, as_json: bool) -> None:
    """Show what differs between two executions.

    Version, inputs, durations and outputs of each step, and the first event at which they diverge.
    """

    async def compared() -> dict[str, Any]:
        from noetl.cli.backend.base import find_execution

        async with target.open() as backend:
            ids = [(await find_execution(backend, each)).execution_id for each in (execution_id, other)]
            return await backend.compare(*ids)

    document = asyncio.run(compared())
    if as_json:
        terminal.json(document)
    else:
        _show(document)


def _show(document: dict[str, Any]) -> None:
    a, b = document["a"], document["b"]
    rows = [(name, a[name], b[name]) for name in ("execution_id", "path", "version", "status", "duration_ms", "error")]
    terminal.table(("", "A", "B"), rows, styles=STATUS_STYLES)
    if not document["version"]["same"]:
        terminal.data("\nthe texts of the playbooks differ")
    for title in ("inputs", "outputs"):
        _show_differences(title, document[title])
    terminal.data("\nsteps")
    terminal.table(
        ("STEP", "A", "TOOK", "B", "TOOK", "OUTPUT"), map(_step_row, document["steps"]), styles=STATUS_STYLES
    )
    first = document["first_divergence"]
    if first is None:
        terminal.data("\nno divergence: both executions did the same")
        return
    sides = " and ".join(
        f"{name.upper()} has event {first[name]['seq']} ({first[name]['name']})"
        if first[name]
        else f"{name.upper()} has none"
        for name in ("a", "b")
    )
    terminal.data(f"\nfirst divergence at {first['where']}: {sides}")
    _show_differences("", first["differences"])


def _show_differences(title: str, differences: list[dict[str, Any]]) -> None:
    if title:
        terminal.data(f"\n{title}: {'the same' if not differences else f'{len(differences)} differences'}")
    for each in differences[:20]:
        left, right = (terminal.pretty(each[side]) if side in each else "-" for side in ("a", "b"))
        terminal.data(f"  {each['path'] or '(whole)'}: {left} -> {right}")


def _step_row(row: dict[str, Any]) -> tuple[Any, ...]:
    def took(side: dict[str, Any] | None) -> str | None:
        from noetl.cli.output.display import duration

        return None if side is None or side["duration_ms"] is None else duration(side["duration_ms"] / 1000)

    a, b = row["a"], row["b"]
    return row["step"], a and a["status"], took(a), b and b["status"], took(b), row["output"]
