"""`noetl run`, `execute` and `rerun`: an execution from its request to its result, here or on a server."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from noetl.cli.output.terminal import as_json, talk, terminal
from noetl.cli.playbooks.validate import legacy, strict
from noetl.cli.target import Target, server_option, store_option, token_option, with_target
from noetl.errors import RequestRefused

if TYPE_CHECKING:
    from noetl.cli.output.display import Display
    from noetl.client import Client
    from noetl.core.language.compile import Compilation
    from noetl.embedded import LocalEngine

MAX_READ = 64 * 1024 * 1024
PATIENCE = 2.0  # seconds before somebody who waits for nothing is told
SHOWN_WARNINGS = 10

timeout_option = click.option(
    "--timeout", type=click.FloatRange(min=0, min_open=True), metavar="S", help="Cancel the execution after S seconds."
)
payload_option = click.option("--payload", metavar="JSON|@FILE", help="Laid over the playbook's workload; @- is stdin.")
set_option = click.option(
    "--set", "sets", multiple=True, metavar="a.b=VALUE", help="One value of the workload, read as YAML."
)
wait_option = click.option("--wait/--no-wait", default=True, help="Wait for the end, or only start it.")


@click.command()
@click.argument("target", metavar="FILE|PATH")
@payload_option
@set_option
@strict
@legacy
@timeout_option
@store_option
@as_json
@talk
def run(
    target: str,
    payload: str | None,
    sets: tuple[str, ...],
    strict: bool,
    legacy: bool,
    timeout: float | None,
    store: str | None,
    as_json: bool,
) -> int:
    """Run a playbook to its end, here, without a server.

    The argument is a file (- is stdin), or the path of a registered playbook. The output goes to
    stdout: text as it is, other data as JSON; with --json a document with the status, the output, ctx,
    the error and every step. Progress and what tools print go to stderr.
    """
    from noetl.cli.inputs import read_payload

    given = read_payload(payload, sets)
    named = _from_file(target) if _means_a_file(target) else None
    checked = _compile(named, target, strict, legacy) if named is not None else None

    async def begin(engine: LocalEngine) -> str:
        from noetl.server.orchestrator.submissions import Submission

        found = named or await _registered(engine, target) or _from_file(target)
        request = Submission(
            text=found.text.decode("utf-8-sig"),
            file=found.file,
            version=found.version,
            payload=given,
            strict=strict,
            legacy=legacy,
            compilation=checked or _compile(found, target, strict, legacy),
        )
        return await engine.orchestrator.submit(request)

    return asyncio.run(drive(begin, store, timeout, as_json))


@click.command()
@click.argument("target", metavar="PATH[@VERSION]|FILE")
@payload_option
@set_option
@strict
@legacy
@timeout_option
@wait_option
@click.option("--key", metavar="TEXT", help="Idempotency key: the same key starts one execution, however often.")
@server_option
@token_option
@as_json
@talk
def execute(
    target: str,
    payload: str | None,
    sets: tuple[str, ...],
    strict: bool,
    legacy: bool,
    timeout: float | None,
    wait: bool,
    key: str | None,
    server: str | None,
    token: str | None,
    as_json: bool,
) -> int:
    """Run a registered playbook (or a file) on a server.

    Shown like `noetl run`; Ctrl-C stops only the showing. Without --server it is the server of the settings,
    or the one that runs on this machine.
    """
    from noetl.cli.inputs import read_payload, split_version

    place = Target(server=server, token=token)
    request: dict[str, Any] = {"payload": read_payload(payload, sets), "key": key, "strict": strict, "legacy": legacy}
    path, version = split_version(target)
    if _means_a_file(target):
        request["content"] = _text(_from_file(target), target)
    else:
        request |= {"path": path, "version": version}

    def begin(client: Client) -> str:
        return client.submit(**request)

    return asyncio.run(_watch(begin, place, timeout, wait, as_json))


@click.command()
@click.argument("execution_id", metavar="ID")
@click.option("--from", "from_step", metavar="STEP", help="Begin at this step and keep what came before it.")
@timeout_option
@wait_option
@with_target
@as_json
@talk
def rerun(
    execution_id: str, from_step: str | None, timeout: float | None, wait: bool, place: Target, as_json: bool
) -> int:
    """Run an execution's playbook again.

    It is a new execution of the same text with the same payload. An execution of this machine runs in this
    process and is waited for; one of a server runs there.
    """
    if place.means_server(place.settings()):
        return asyncio.run(_rerun_there(execution_id, from_step, place, timeout, wait, as_json))
    if not wait:
        raise click.UsageError("--no-wait needs a server: an execution of this machine runs in this process")

    async def begin(engine: LocalEngine) -> str:
        from noetl.cli.backend.executions import LocalBackend, named

        return await engine.orchestrator.rerun(
            (await named(LocalBackend(engine), execution_id)).execution_id, from_step
        )

    return asyncio.run(drive(begin, place.store, timeout, as_json))


async def _rerun_there(
    execution_id: str, from_step: str | None, place: Target, timeout: float | None, wait: bool, as_json: bool
) -> int:
    from noetl.cli.backend.executions import named

    async with place.opened() as desk:
        found = (await named(desk, execution_id)).execution_id
    return await _watch(lambda client: client.rerun(found, from_step), place, timeout, wait, as_json)


async def drive(
    begin: Callable[[LocalEngine], Awaitable[str]],
    store: str | None,
    timeout: float | None,
    as_json: bool,
    **more: Any,
) -> int:
    """See an execution through that runs in this process; `begin` answers which."""
    from noetl.cli.backend.executions import LocalBackend
    from noetl.cli.follow import ExecutionFollower, Shown, show_result
    from noetl.cli.local_engine import open_engine
    from noetl.cli.output.display import open_display

    display = open_display()
    try:
        async with open_engine(store, watcher=Shown(display), **more) as engine:
            driver = ExecutionFollower(LocalBackend(engine), await begin(engine), display, timeout)
            result, code = await driver.finish()
    finally:
        display.close()
    show_result(result, as_json)
    return code


async def _watch(
    begin: Callable[[Client], str], place: Target, timeout: float | None, wait: bool, as_json: bool
) -> int:
    """See an execution through that runs on a server."""
    from noetl.cli.backend.executions import RemoteBackend
    from noetl.cli.follow import ExecutionFollower, show_result
    from noetl.cli.output.display import open_display

    with place.client(place.settings()) as client:
        execution_id = await asyncio.to_thread(begin, client)
        desk = RemoteBackend(client)
        if not wait:
            from noetl.cli.executions.control import show_summary

            if not as_json:
                terminal.data(execution_id)
            else:
                show_summary(await desk.summary(execution_id), as_json)
            return 0
        display = open_display()
        looking = asyncio.ensure_future(_look_for_workers(client, execution_id, display))
        try:
            result, code = await ExecutionFollower(desk, execution_id, display, timeout, leaves=True).finish()
        finally:
            looking.cancel()
            display.close()
    show_result(result, as_json)
    return code


async def _look_for_workers(client: Client, execution_id: str, display: Display) -> None:
    """Say so when nothing begins because nobody works: the first thing that is forgotten."""
    from noetl.errors import NoetlError

    await asyncio.sleep(PATIENCE)
    try:
        steps = (await asyncio.to_thread(client.execution, execution_id))["steps"]
        if not any(step["tasks"] for step in steps) and not await asyncio.to_thread(client.workers):
            display.log("no worker has asked this server for work yet; `noetl worker start` starts one")
    except NoetlError:
        return  # following it tells the same, and better


def _text(found: Found, target: str) -> str:
    try:
        return found.text.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise RequestRefused(f"{target} is not UTF-8 text (byte {problem.start})") from None


class Found(NamedTuple):
    """A playbook's text and where it came from."""

    text: bytes
    file: str = ""
    version: str | None = None


def _means_a_file(target: str) -> bool:
    return (
        target == "-"
        or target.endswith((".yaml", ".yml", ".json"))
        or target.startswith((".", "/", "~"))
        or target[-1:] == "/"
    )


async def _registered(engine: LocalEngine, target: str) -> Found | None:
    from noetl.cli.inputs import split_version

    stored = await engine.orchestrator.catalog.registered(*split_version(target))
    return Found(stored.text.encode(), stored.file, str(stored.version)) if stored is not None else None


def _from_file(target: str) -> Found:
    from noetl.cli.playbook_files import read_bounded
    from noetl.errors import NotFound

    if target == "-":
        return Found(read_bounded(target, MAX_READ))
    name = os.path.expanduser(target)
    for candidate in (name, f"{name}.yaml", f"{name}.yml"):
        if os.path.exists(candidate) or _means_a_file(target):
            return Found(read_bounded(candidate, MAX_READ), os.path.abspath(candidate))
    raise NotFound(f"{target}: no playbook is registered under this path, and there is no such file")


def _compile(found: Found, target: str, strict: bool, legacy: bool) -> Compilation:
    """Compile the playbook and print its diagnostics; errors end the command."""
    from noetl.cli.app import INVALID
    from noetl.core.language.compile import compile_playbook
    from noetl.tools.registry import specs

    shown = "<stdin>" if target == "-" else target
    compilation = compile_playbook(found.text, file=shown, specs=specs(), strict=strict, legacy=legacy)
    if compilation.playbook is None:
        terminal.diagnostics((one for one in compilation.diagnostics if one.severity == "error"), found.text)
        raise click.exceptions.Exit(INVALID)
    warnings = compilation.diagnostics
    if warnings and not terminal.quiet:
        terminal.diagnostics(warnings[:SHOWN_WARNINGS], found.text)
        if len(warnings) > SHOWN_WARNINGS:
            terminal.note(f"... and {len(warnings) - SHOWN_WARNINGS} more; `noetl validate {shown}` shows all")
    return compilation
