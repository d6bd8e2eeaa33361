"""`noetl mcp`: tools for AI assistants."""

from __future__ import annotations

from pathlib import Path

import click

from noetl.cli.target import Target, with_target


@click.command()
@click.option("--allow-run", is_flag=True, help="Add the tool `run`; without it nothing can be started or changed.")
@click.option(
    "--root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=".",
    show_default=True,
    help="Only files in this folder are read.",
)
@with_target
def mcp(allow_run: bool, root: Path, target: Target) -> None:
    """Serve the Model Context Protocol on stdin and stdout, for AI assistants.

    The tools validate and plan playbooks, explain diagnostics, and show executions, why they have their status, and
    their events: those of this machine, or of a server with --server. Secrets are masked. The assistant starts this
    command.
    """
    from noetl.cli.integrations.mcp_server import build_server

    build_server(target, root.resolve(), allow_run=allow_run).run("stdio")
