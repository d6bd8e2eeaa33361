"""`noetl lsp`: the language server for editors."""

from __future__ import annotations

import os
import sys
from contextlib import redirect_stdout

import click

from noetl.cli.target import Target, with_target


@click.command()
@click.option("--stdio", is_flag=True, help="Accepted for editors that pass it; stdin and stdout are always used.")
@click.option("--strict", is_flag=True, help="Report v10 spellings as errors, not warnings.")
@click.option("--legacy", is_flag=True, help="Accept the 2025-11 dialect.")
@with_target
def lsp(stdio: bool, strict: bool, legacy: bool, target: Target) -> None:
    """Serve the Language Server Protocol on stdin and stdout, for editors.

    Diagnostics while typing, completion, hover, outline, go to definition, references, rename, quick fixes and
    formatting of playbooks. Registered schemas are read from the store of this machine or from a server. The editor
    starts this command; it ends with the editor.
    """
    import pygls  # noqa: F401 - first: the message about a missing package names the extra that has it

    from noetl.cli.integrations.language_server.build import build_server

    # Copies, because the server closes its streams. What a plug-in prints must not become part of the protocol.
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with redirect_stdout(sys.stderr):
        build_server(target, strict=strict, legacy=legacy).start_io(requests, answers)
