"""`noetl graph` and `noetl plan`: show a playbook without running it."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import click

from noetl.cli.output.terminal import json_options, output_options, terminal
from noetl.cli.playbook_files import read_bounded
from noetl.cli.playbooks.validate import legacy, strict
from noetl.cli.target import Target, load_settings, with_target


def compiled(name: str, *, strict: bool = False, legacy: bool = False) -> Any:
    """The compilation of a file; InvalidPlaybook if it has errors."""
    from noetl.core.language.source.yaml_source import MAX_BYTES

    text = read_bounded(name, MAX_BYTES)
    return compile_text(text, "<stdin>" if name == "-" else name, strict=strict, legacy=legacy)


def compile_text(text: bytes, file: str, *, strict: bool = False, legacy: bool = False) -> Any:
    """The compilation of a text; InvalidPlaybook if it has errors."""
    from noetl.core.language.compile import compile_playbook
    from noetl.errors import InvalidPlaybook
    from noetl.tools import registry as tools

    compilation = compile_playbook(text, file=file, specs=tools.specs(), strict=strict, legacy=legacy)
    if compilation.playbook is None:
        raise InvalidPlaybook([one for one in compilation.diagnostics if one.severity == "error"])
    return compilation


@click.command()
@click.argument("source", metavar="FILE|PATH|ID")
@click.option(
    "--format",
    "format",
    type=click.Choice(["mermaid", "dot", "svg", "json"]),
    default="mermaid",
    show_default=True,
    help="Output format.",
)
@legacy
@with_target
@output_options
def graph(source: str, format: str, legacy: bool, target: Target) -> None:
    """Print the steps and arcs of a playbook as a graph; nothing runs.

    The argument is a file (- is stdin), the path of a registered playbook, or the id of an execution.

    mermaid is for Markdown pages, dot for Graphviz, svg is a standalone image that follows the light or dark
    scheme of the viewer, json has the nodes and arcs as data.
    """
    from noetl.core.language.editor.graph import as_dot, as_mermaid
    from noetl.core.language.editor.graph_svg import as_svg

    is_file = source == "-" or os.path.exists(source) or source.endswith((".yaml", ".yml", ".json"))
    net = _net(compiled(source, legacy=legacy)) if is_file else asyncio.run(_registered_net(source, legacy, target))
    if format == "json":
        terminal.json(net)
    else:
        terminal.document({"mermaid": as_mermaid, "dot": as_dot, "svg": as_svg}[format](net))


def _net(compilation: Any) -> Any:
    from noetl.core.language.editor.net_document import net_document

    return net_document(compilation.playbook)


async def _registered_net(source: str, legacy: bool, target: Target) -> Any:
    """The net of an execution, or of a registered playbook."""
    from noetl.cli.backend.base import LAST, find_execution
    from noetl.cli.inputs import split_version

    async with target.open() as backend:
        if source.isdecimal() or source == LAST:
            return await backend.graph((await find_execution(backend, source)).execution_id)
        path, version = split_version(source)
        stored = await backend.playbook(path, int(version) if version and version.isdecimal() else None)
    return _net(compile_text(stored.text.encode(), f"{stored.path}@{stored.version}", legacy=legacy))


@click.command()
@click.argument("file", metavar="FILE")
@strict
@legacy
@json_options
def plan(file: str, strict: bool, legacy: bool, as_json: bool) -> None:
    """Show what FILE (- is stdin) would run: steps in order, effective specs, findings, requirements. Nothing runs."""
    from noetl.core.language.editor.plan import as_text

    document, findings = plan_of(compiled(file, strict=strict, legacy=legacy))
    if as_json:
        terminal.json({**document, "findings": [one.as_dict() for one in findings]})
        return
    terminal.data(as_text(document))
    for one in findings:
        terminal.data(f"{one.severity}: {one.file}:{one.line}:{one.column}: {one.message} [{one.code}]")


def plan_of(compilation: Any) -> tuple[dict[str, Any], list[Any]]:
    """The plan of a compiled playbook as data, and all findings about it."""
    from noetl.core.language.checks.result_stores import unavailable_stores
    from noetl.core.language.editor.plan import missing_timeouts, plan_document
    from noetl.storage.results import store_types
    from noetl.tools import registry as tools

    document = plan_document(compilation.playbook, dict(tools.specs()))
    stores = unavailable_stores(compilation.playbook, store_types(load_settings().settings.results))
    return document, sorted((*compilation.diagnostics, *missing_timeouts(document, compilation.playbook), *stores))
