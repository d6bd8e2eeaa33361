"""Verbs that show a playbook before it runs: its net, and its plan."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import click

from noetl.cli.output.terminal import as_json, talk, terminal
from noetl.cli.playbook_files import read_bounded
from noetl.cli.playbooks.validate import legacy, strict
from noetl.cli.target import Target, with_target


def compiled(name: str, *, strict: bool = False, legacy: bool = False) -> Any:
    """A playbook's compilation; with errors they are told and nothing else happens (exit 3)."""
    from noetl.core.language.source.yaml_source import MAX_BYTES

    text = read_bounded(name, MAX_BYTES)
    return _compilation(text, "<stdin>" if name == "-" else name, strict=strict, legacy=legacy)


def _compilation(text: bytes, file: str, *, strict: bool = False, legacy: bool = False) -> Any:
    from noetl.core.language.compile import compile_playbook
    from noetl.errors import InvalidPlaybook
    from noetl.tools import registry as tools

    compilation = compile_playbook(text, file=file, specs=tools.specs(), strict=strict, legacy=legacy)
    if compilation.playbook is None:
        raise InvalidPlaybook([one for one in compilation.diagnostics if one.severity == "error"])
    return compilation


@click.command()
@click.argument("target", metavar="FILE|PATH|ID")
@click.option(
    "--format",
    "format",
    type=click.Choice(["mermaid", "dot", "svg", "json"]),
    default="mermaid",
    show_default=True,
    help="What to write.",
)
@legacy
@with_target
@talk
def graph(target: str, format: str, legacy: bool, place: Target) -> None:
    """Draw the steps and arcs of a playbook; run nothing.

    The argument is a file (- is stdin), the path of a registered playbook, or the id of an execution.

    mermaid is what Markdown pages show, dot is for Graphviz, svg stands alone and follows the reader's light or
    dark scheme, json has the nodes and arcs as data.
    """
    from noetl.core.language.editor.graph import as_dot, as_mermaid
    from noetl.core.language.editor.graph_svg import as_svg

    is_file = target == "-" or os.path.exists(target) or target.endswith((".yaml", ".yml", ".json"))
    net = _net(compiled(target, legacy=legacy)) if is_file else asyncio.run(_kept_net(target, legacy, place))
    if format == "json":
        terminal.json(net)
    else:
        sys.stdout.write({"mermaid": as_mermaid, "dot": as_dot, "svg": as_svg}[format](net))


def _net(compilation: Any) -> Any:
    from noetl.core.language.editor.net_document import net_document

    return net_document(compilation.playbook)


async def _kept_net(target: str, legacy: bool, place: Target) -> Any:
    """The net of an execution, or of a registered playbook."""
    from noetl.cli.backend.executions import LAST, named
    from noetl.cli.inputs import split_version

    async with place.opened() as desk:
        if target.isdecimal() or target == LAST:
            return await desk.graph((await named(desk, target)).execution_id)
        path, version = split_version(target)
        stored = await desk.playbook(path, int(version) if version and version.isdecimal() else None)
    return _net(_compilation(stored.text.encode(), f"{stored.path}@{stored.version}", legacy=legacy))


@click.command()
@click.argument("file", metavar="FILE")
@strict
@legacy
@as_json
@talk
def plan(file: str, strict: bool, legacy: bool, as_json: bool) -> None:
    """Show what FILE (- is stdin) would do: its steps in order, effective specs, findings, needs. Touches nothing."""
    from noetl.core.language.editor.plan import as_text, missing_timeouts, plan_document
    from noetl.tools import registry as tools

    compilation = compiled(file, strict=strict, legacy=legacy)
    document = plan_document(compilation.playbook, dict(tools.specs()))
    told = sorted((*compilation.diagnostics, *missing_timeouts(document, compilation.playbook)))
    if as_json:
        import msgspec

        from noetl.core.language.diagnostics import as_json as findings

        terminal.json({**document, "findings": msgspec.json.decode(findings(told))})
        return
    terminal.data(as_text(document))
    for one in told:
        terminal.data(f"{one.severity}: {one.file}:{one.line}:{one.column}: {one.message} [{one.code}]")
