"""Verbs that show a playbook before it runs: its net, and its plan."""

from __future__ import annotations

import sys
from typing import Any

import click

from noetl.commands.files import read_bounded
from noetl.commands.playbooks import legacy, strict
from noetl.commands.terminal import as_json, talk, terminal


def compiled(name: str, *, strict: bool = False, legacy: bool = False) -> Any:
    """A playbook's compilation; with errors they are told and nothing else happens (exit 3)."""
    from noetl import tools
    from noetl.dsl.compile import compile_playbook
    from noetl.dsl.source import MAX_BYTES
    from noetl.errors import InvalidPlaybook

    text = read_bounded(name, MAX_BYTES)
    file = "<stdin>" if name == "-" else name
    compilation = compile_playbook(text, file=file, specs=tools.specs(), strict=strict, legacy=legacy)
    if compilation.playbook is None:
        raise InvalidPlaybook([one for one in compilation.diagnostics if one.severity == "error"])
    return compilation


@click.command()
@click.argument("file", metavar="FILE")
@click.option(
    "--format",
    "format",
    type=click.Choice(["mermaid", "dot", "svg", "json"]),
    default="mermaid",
    show_default=True,
    help="What to write.",
)
@legacy
@talk
def graph(file: str, format: str, legacy: bool) -> None:
    """Draw the steps and arcs of FILE (- is stdin); run nothing.

    mermaid is what Markdown pages show, dot is for Graphviz, svg stands alone and follows the reader's light or
    dark scheme, json has the nodes and arcs as data.
    """
    from noetl.dsl import graph as draw
    from noetl.dsl.net import net_document

    net = net_document(compiled(file, legacy=legacy).playbook)
    if format == "json":
        terminal.json(net)
    else:
        sys.stdout.write({"mermaid": draw.as_mermaid, "dot": draw.as_dot, "svg": draw.as_svg}[format](net))


@click.command()
@click.argument("file", metavar="FILE")
@strict
@legacy
@as_json
@talk
def plan(file: str, strict: bool, legacy: bool, as_json: bool) -> None:
    """Show what FILE (- is stdin) would do: its steps in order, effective specs, findings, needs. Touches nothing."""
    from noetl import tools
    from noetl.dsl.plan import as_text, plan_document

    compilation = compiled(file, strict=strict, legacy=legacy)
    document = plan_document(compilation.playbook, dict(tools.specs()))
    if as_json:
        import msgspec

        from noetl.dsl.diagnostics import as_json as findings

        terminal.json({**document, "findings": msgspec.json.decode(findings(compilation.diagnostics))})
        return
    terminal.data(as_text(document))
    for one in compilation.diagnostics:
        terminal.data(f"{one.severity}: {one.file}:{one.line}:{one.column}: {one.message} [{one.code}]")
