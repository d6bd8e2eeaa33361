"""`noetl run` and `noetl rerun`: an execution from its request to its result, in this process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple

import click

from noetl.commands.playbooks import legacy, strict
from noetl.commands.terminal import as_json, talk, terminal

if TYPE_CHECKING:
    from noetl.local import LocalEngine

MAX_READ = 64 * 1024 * 1024
SHOWN_WARNINGS = 10

timeout_option = click.option(
    "--timeout", type=click.FloatRange(min=0, min_open=True), metavar="S", help="Cancel the execution after S seconds."
)
store_option = click.option("--store", metavar="URL", help="Event store: sqlite:///FILE, a file's path, or memory:.")


@click.command()
@click.argument("target", metavar="FILE|PATH")
@click.option("--payload", metavar="JSON|@FILE", help="Laid over the playbook's workload; @- is stdin.")
@click.option("--set", "sets", multiple=True, metavar="a.b=VALUE", help="One value of the workload, read as YAML.")
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
    from noetl.commands.inputs import read_payload

    given = read_payload(payload, sets)
    named = _from_file(target) if _means_a_file(target) else None
    if named is not None:
        _check(named, target, strict, legacy)

    async def begin(engine: LocalEngine) -> str:
        from noetl.control.requests import Submission

        found = named or await _registered(engine, target) or _from_file(target)
        if named is None:
            _check(found, target, strict, legacy)
        text = found.text.decode("utf-8-sig")
        request = Submission(
            text=text, file=found.file, version=found.version, payload=given, strict=strict, legacy=legacy
        )
        return await engine.orchestrator.submit(request)

    return asyncio.run(_drive(begin, store, timeout, as_json))


@click.command()
@click.argument("execution_id", metavar="ID")
@click.option("--from", "from_step", metavar="STEP", help="Begin at this step and keep what came before it.")
@timeout_option
@store_option
@as_json
@talk
def rerun(execution_id: str, from_step: str | None, timeout: float | None, store: str | None, as_json: bool) -> int:
    """Run an execution's playbook again.

    It is a new execution of the same text with the same payload.
    """

    async def begin(engine: LocalEngine) -> str:
        from noetl.commands.engines import named

        return await engine.orchestrator.rerun((await named(engine, execution_id)).execution_id, from_step)

    return asyncio.run(_drive(begin, store, timeout, as_json))


async def _drive(
    begin: Callable[[LocalEngine], Awaitable[str]], store: str | None, timeout: float | None, as_json: bool
) -> int:
    from noetl.commands.display import open_display
    from noetl.commands.driving import Driver, Shown, show_result
    from noetl.commands.engines import opened

    display = open_display()
    try:
        async with opened(store, work=True, watcher=Shown(display)) as engine:
            driver = Driver(engine.orchestrator, await begin(engine), display, timeout)
            result, code = await driver.finish()
            result = await engine.hydrated(result)
    finally:
        display.close()
    show_result(result, as_json)
    return code


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


async def _registered(engine: LocalEngine, path: str) -> Found | None:
    stored = await engine.orchestrator.catalogue.registered(path)
    return Found(stored.text.encode(), stored.file, str(stored.version)) if stored is not None else None


def _from_file(target: str) -> Found:
    from noetl.commands.files import read_bounded
    from noetl.errors import NotFound

    if target == "-":
        return Found(read_bounded(target, MAX_READ))
    name = os.path.expanduser(target)
    for candidate in (name, f"{name}.yaml", f"{name}.yml"):
        if os.path.exists(candidate) or _means_a_file(target):
            return Found(read_bounded(candidate, MAX_READ), os.path.abspath(candidate))
    raise NotFound(f"{target}: no playbook is registered under this path, and there is no such file")


def _check(found: Found, target: str, strict: bool, legacy: bool) -> None:
    """Compile once for the author's eyes: errors end the command here, warnings are said."""
    from noetl.commands.program import INVALID
    from noetl.dsl.compile import compile_playbook
    from noetl.tools import specs

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
