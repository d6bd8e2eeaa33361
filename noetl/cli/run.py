"""`noetl run` and `execute`: start an execution and wait for its result, locally or on a server."""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from msgspec.structs import replace

from noetl.cli.output.terminal import json_options, terminal
from noetl.cli.playbooks.validate import legacy, strict
from noetl.cli.projects.options import profile_option
from noetl.cli.target import Target, store_option, with_server
from noetl.core.model.bundle import split_bundle_file
from noetl.core.model.merge import deep_merge
from noetl.errors import InvalidPlaybook, RequestRefused

if TYPE_CHECKING:
    from noetl.cli.projects.project import ProjectProfile
    from noetl.client import Client
    from noetl.core.model.playbook import Playbook
    from noetl.embedded import LocalEngine

MAX_READ = 64 * 1024 * 1024
SHOWN_WARNINGS = 10

timeout_option = click.option(
    "--timeout", type=click.FloatRange(min=0, min_open=True), metavar="S", help="Cancel the execution after S seconds."
)
payload_option = click.option(
    "--payload", metavar="JSON|@FILE", help="Merged into the playbook's workload; @- is stdin."
)
set_option = click.option(
    "--set", "sets", multiple=True, metavar="a.b=VALUE", help="One value of the workload, read as YAML."
)
wait_option = click.option("--wait/--no-wait", default=True, help="Wait for the end, or return after the start.")


@click.command()
@click.argument("source", metavar="FILE|PATH")
@payload_option
@set_option
@strict
@legacy
@timeout_option
@profile_option
@store_option
@json_options
def run(
    source: str,
    payload: str | None,
    sets: tuple[str, ...],
    strict: bool,
    legacy: bool,
    timeout: float | None,
    profile: str | None,
    store: str | None,
    as_json: bool,
) -> int:
    """Run a playbook to its end on this machine, without a server.

    The argument is a file (- is stdin), or the path of a registered playbook. The output is written to
    stdout: text unchanged, other data as JSON; with --json a document with the status, the output, ctx,
    the error and every step. Progress and the output of tools are written to stderr.
    """
    from noetl.cli.inputs import read_payload

    given = read_payload(payload, sets)
    named = _from_file(source) if _is_file_name(source) else None
    checked = _compile(named, source, strict, legacy) if named is not None else None
    chosen = _profile(profile, named)

    async def begin(engine: LocalEngine) -> str:
        from noetl.server.orchestrator.submissions import Submission

        found = named or await _registered(engine, source) or await _unregistered(engine, source)
        playbook = checked or _compile(found, source, strict, legacy)
        _warn_unknown(given, playbook.workload, found.text.decode("utf-8-sig"))
        if chosen is not None:
            found = await _with_profile(engine, found, chosen)
        request = Submission(
            text=found.text.decode("utf-8-sig"),
            file=found.file,
            version=found.version,
            payload=given,
            strict=strict,
            legacy=legacy,
            playbook=playbook,
        )
        return await engine.orchestrator.submit(request)

    return asyncio.run(run_locally(begin, store, timeout, as_json))


@click.command()
@click.argument("source", metavar="PATH[@VERSION]|FILE")
@payload_option
@set_option
@strict
@legacy
@timeout_option
@wait_option
@profile_option
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="Label of the execution (may be repeated).")
@click.option("--key", metavar="TEXT", help="Idempotency key: commands with the same key start one execution.")
@with_server
@json_options
def execute(
    source: str,
    payload: str | None,
    sets: tuple[str, ...],
    strict: bool,
    legacy: bool,
    timeout: float | None,
    wait: bool,
    profile: str | None,
    labels: tuple[str, ...],
    key: str | None,
    target: Target,
    as_json: bool,
) -> int:
    """Run a registered playbook (or a file) on a server.

    Progress and output are those of `noetl run`; Ctrl-C does not stop the execution. Without --server it is the
    server of the settings, or the one that is running on this machine.
    """
    from noetl.cli.inputs import read_payload, split_version

    request: dict[str, Any] = {"payload": read_payload(payload, sets), "key": key, "strict": strict, "legacy": legacy}
    if labels:
        request["labels"] = _labels(labels)
    path, version = split_version(source)
    packed = None
    found = _from_file(source) if _is_file_name(source) else None
    chosen = _profile(profile, found)
    if chosen is not None:
        target = chosen.target(target)
    if found is not None:
        from noetl.cli.projects.named_files import pack_file

        packed, _ = pack_file(found.file or source, found.text, chosen.values if chosen else None)
        request |= {"content": packed.text, "file": packed.file}
    else:
        request |= {"path": path, "version": version}
        if chosen is not None:
            request["payload"] = deep_merge(chosen.values.workload, request["payload"])

    def begin(client: Client) -> str:
        if request["payload"] and not terminal.quiet:
            _warn_unknown_remotely(client, request, path, version)
        if packed is not None and packed.file:
            client.add_bundle(packed.bundle, packed.contents)
        try:
            return client.submit(**request)
        except InvalidPlaybook as problem:
            if packed is None:
                raise
            raise InvalidPlaybook([replace(each, file=source) for each in problem.diagnostics]) from None

    return asyncio.run(run_remotely(begin, target, timeout, wait, as_json))


def _labels(given: tuple[str, ...]) -> dict[str, str]:
    """The labels of `--label KEY=VALUE`."""
    for each in given:
        if "=" not in each.strip("="):
            raise click.UsageError(f"--label {each!r} is not KEY=VALUE")
    return {key: value for key, _, value in (each.partition("=") for each in given)}


async def run_locally(
    begin: Callable[[LocalEngine], Awaitable[str]],
    store: str | None,
    timeout: float | None,
    as_json: bool,
    **more: Any,
) -> int:
    """Follow an execution that runs in this process; `begin` starts it and returns its id."""
    from noetl.cli.backend.local import LocalBackend
    from noetl.cli.follow import ExecutionFollower, ToolOutput, show_result
    from noetl.cli.local_engine import open_engine
    from noetl.cli.output.display import open_display

    display = open_display()
    try:
        async with open_engine(store, observer=ToolOutput(display), **more) as engine:
            options = f" --store {shlex.quote(store)}" if store else ""
            follower = ExecutionFollower(LocalBackend(engine), await begin(engine), display, timeout, options=options)
            result, code = await follower.finish()
    finally:
        display.close()
    show_result(result, as_json)
    return code


async def run_remotely(
    begin: Callable[[Client], str], target: Target, timeout: float | None, wait: bool, as_json: bool
) -> int:
    """Follow an execution that runs on a server; `begin` starts it and returns its id."""
    from noetl.cli.backend.remote import RemoteBackend
    from noetl.cli.follow import ExecutionFollower, show_result
    from noetl.cli.output.display import open_display

    with target.client(target.settings()) as client:
        execution_id = await asyncio.to_thread(begin, client)
        backend = RemoteBackend(client)
        if not wait:
            from noetl.cli.executions.control import show_summary

            if not as_json:
                terminal.data(execution_id)
            else:
                show_summary(await backend.summary(execution_id), as_json)
            return 0
        display = open_display()
        try:
            result, code = await ExecutionFollower(backend, execution_id, display, timeout, detaches=True).finish()
        finally:
            display.close()
    show_result(result, as_json)
    return code


def _text(found: Found, source: str) -> str:
    try:
        return found.text.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise RequestRefused(f"{source} is not UTF-8 text (byte {problem.start})") from None


def _profile(name: str | None, found: Found | None) -> ProjectProfile | None:
    """A profile of the project around a file, or around the working folder."""
    if name is None:
        return None
    from noetl.cli.projects.project import open_project

    return open_project(Path(found.file).parent if found is not None and found.file else Path()).profile(name)


async def _with_profile(engine: LocalEngine, found: Found, profile: ProjectProfile) -> Found:
    """The playbook in a bundle with the values of a profile, as a server runs it."""
    from noetl.cli.backend.local import LocalBackend
    from noetl.cli.projects.named_files import pack_file

    if not found.file or split_bundle_file(found.file) is not None:
        raise RequestRefused("--profile needs a file of a project, or a playbook that was applied with the profile")
    packed, _ = pack_file(found.file, found.text, profile.values)
    await LocalBackend(engine).add_bundle(packed.bundle, packed.contents)
    return Found(found.text, packed.file, found.version)


def _warn_unknown(payload: dict[str, Any], workload: Mapping[str, Any], text: str) -> None:
    """Warn of values that a playbook does not use."""
    if payload:
        from noetl.cli.inputs import unknown_keys

        for warning in unknown_keys(payload, workload, text):
            terminal.warn(warning)


def _warn_unknown_remotely(client: Client, request: dict[str, Any], path: str, version: str | None) -> None:
    """Warn of values that a playbook of a server does not use; an unknown path is reported by the request."""
    from noetl.core.language.source.yaml_source import data_of, read_source
    from noetl.errors import NotFound

    text = request.get("content")
    if text is None:
        number = int(version) if version and version.isdecimal() else None
        try:
            text = client.playbook(path, number).text
        except NotFound:
            return
    document = data_of(read_source(text.encode()).root)
    workload = document.get("workload") if isinstance(document, dict) else None
    _warn_unknown(request["payload"], workload if isinstance(workload, dict) else {}, text)


class Found(NamedTuple):
    """The text of a playbook, its file and its version."""

    text: bytes
    file: str = ""
    version: str | None = None


def _is_file_name(source: str) -> bool:
    return (
        source == "-"
        or source.endswith((".yaml", ".yml", ".json"))
        or source.startswith((".", "/", "~"))
        or source[-1:] == "/"
    )


async def _registered(engine: LocalEngine, source: str) -> Found | None:
    from noetl.cli.inputs import split_version

    stored = await engine.orchestrator.catalog.registered(*split_version(source))
    return Found(stored.text.encode(), stored.file, str(stored.version)) if stored is not None else None


async def _unregistered(engine: LocalEngine, source: str) -> Found:
    """The file of a name without a suffix; NotFound with a suggestion of the catalog."""
    from noetl.errors import NotFound

    try:
        return _from_file(source)
    except NotFound:
        from noetl.cli.inputs import split_version

        raise await engine.orchestrator.catalog.unknown(*split_version(source), files=True) from None


def _from_file(source: str) -> Found:
    from noetl.cli.playbook_files import read_bounded
    from noetl.errors import NotFound

    if source == "-":
        return Found(read_bounded(source, MAX_READ))
    name = os.path.expanduser(source)
    for candidate in (name, f"{name}.yaml", f"{name}.yml"):
        if os.path.exists(candidate) or _is_file_name(source):
            return Found(read_bounded(candidate, MAX_READ), os.path.abspath(candidate))
    raise NotFound(f"{source}: no playbook is registered under this path, and there is no such file")


def _compile(found: Found, source: str, strict: bool, legacy: bool) -> Playbook:
    """Compile the playbook and print its diagnostics; errors end the command."""
    from noetl.cli.compile_cache import CompileCache
    from noetl.settings import load

    shown = "<stdin>" if source == "-" else source
    cache = CompileCache(load({}).settings.home)
    key = cache.key(found.text, shown, strict=strict, legacy=legacy)
    playbook = cache.get(key)
    if playbook is None:
        playbook, warnings = _compile_text(found.text, shown, strict, legacy)
        if not warnings:
            cache.put(key, playbook)
    return playbook


def _compile_text(text: bytes, shown: str, strict: bool, legacy: bool) -> tuple[Playbook, int]:
    """Compile a text and print its diagnostics; returns the playbook and the number of warnings."""
    from noetl.cli.app import INVALID
    from noetl.core.language.compile import compile_playbook
    from noetl.tools.registry import specs

    compilation = compile_playbook(text, file=shown, specs=specs(), strict=strict, legacy=legacy)
    if compilation.playbook is None:
        terminal.diagnostics((one for one in compilation.diagnostics if one.severity == "error"), text)
        raise click.exceptions.Exit(INVALID)
    warnings = compilation.diagnostics
    if warnings and not terminal.quiet:
        terminal.diagnostics(warnings[:SHOWN_WARNINGS], text)
        if len(warnings) > SHOWN_WARNINGS:
            terminal.note(f"... and {len(warnings) - SHOWN_WARNINGS} more; `noetl validate {shown}` shows all")
    return compilation.playbook, len(warnings)
