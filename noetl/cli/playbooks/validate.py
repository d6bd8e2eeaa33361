"""`noetl validate`: it reads files and runs nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from noetl.cli.app import INVALID, USAGE
from noetl.cli.output.terminal import output_options, terminal
from noetl.cli.playbook_files import CannotRead, read_bounded
from noetl.cli.target import Target, token_option
from noetl.errors import RequestRefused
from noetl.runtime.printable import printable, printable_json

if TYPE_CHECKING:
    from noetl.cli.backend.base import Backend

strict = click.option("--strict", is_flag=True, help="Report v10 spellings as errors, not warnings.")
legacy = click.option("--legacy", is_flag=True, help="Accept the 2025-11 dialect.")


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE|FOLDER...")
@strict
@legacy
@click.option(
    "--format",
    "format",
    type=click.Choice(["text", "json", "github", "sarif"]),
    default="text",
    show_default=True,
    help="Output format.",
)
@click.option("--server", metavar="URL", help="Validate on this server: with its tool kinds and result stores.")
@token_option
@output_options
def validate(
    files: tuple[str, ...], strict: bool, legacy: bool, format: str, server: str | None, token: str | None
) -> int:
    """Report all problems of all FILEs (- is stdin), and of the playbooks and resources in FOLDERs; nothing runs.

    Exit code 0 if there are no errors, 3 if a playbook has errors, 2 if a file could not be read.
    """
    from noetl import __version__
    from noetl.cli.projects.project import RESOURCE_SUFFIXES
    from noetl.core.language import diagnostics as write
    from noetl.core.language.compile import compile_playbook
    from noetl.core.language.source.yaml_source import MAX_BYTES
    from noetl.tools import registry as tools

    specs = tools.specs()
    found: list[Any] = []
    sources: dict[str, str] = {}
    unreadable = False
    names = list(_expanded(files))
    for name in names:
        try:
            text = read_bounded(name, MAX_BYTES)
        except CannotRead as problem:
            terminal.error(str(problem))
            unreadable = True
            continue
        file = "<stdin>" if name == "-" else name
        sources[file] = text.decode("utf-8", errors="replace")
        if name.endswith(RESOURCE_SUFFIXES):
            from noetl.cli.projects.resource_checks import check_resources

            found += check_resources(sources[file], file)
        elif server is not None:
            check = Target(None, server, token).call
            found += check(partial(_check_remotely, text=text, file=file, strict=strict, legacy=legacy))
        else:
            found += compile_playbook(text, file=file, specs=specs, strict=strict, legacy=legacy).diagnostics
    errors = sum(one.severity == "error" for one in found)
    if format == "text":
        sys.stdout.write(terminal.diagnostics_text(found, sources, sys.stdout))
        _print_totals(len(sources), errors, len(found) - errors)
    elif format == "json":
        sys.stdout.write(printable_json(write.as_json(found)))
    elif format == "github":
        sys.stdout.write(printable(write.as_github(found)))
    else:
        sys.stdout.write(printable_json(write.as_sarif(found, version=__version__)))
    return USAGE if unreadable else INVALID if errors else 0


def _expanded(files: tuple[str, ...]) -> Iterator[str]:
    """The files, with folders replaced by the playbooks in them."""
    for name in files:
        if name == "-" or not os.path.isdir(name):
            yield name
            continue
        from noetl.cli.projects.project import Project

        project = Project(Path(name), "")
        found = [os.path.relpath(file) for file in (*project.playbooks(), *project.resources())]
        if not found:
            raise RequestRefused(f"{name}: there are no playbooks (files with `kind: Playbook`) in this folder")
        yield from found


async def _check_remotely(backend: Backend, *, text: bytes, file: str, strict: bool, legacy: bool) -> list[Any]:
    return await backend.check(text, file, strict=strict, legacy=legacy)


def _print_totals(files: int, errors: int, warnings: int) -> None:
    def count(number: int, noun: str) -> str:
        return f"{number} {noun}" if number == 1 else f"{number} {noun}s"

    if not files:
        return
    if not errors and not warnings:
        terminal.note(f"{count(files, 'file')}: no problems")
    else:
        terminal.note(f"{count(files, 'file')}: {count(errors, 'error')}, {count(warnings, 'warning')}")
