"""Verbs about playbooks as texts: they read files and run nothing."""

from __future__ import annotations

import sys
from typing import Any

import click

from noetl.cli.app import INVALID, USAGE
from noetl.cli.output.terminal import talk, terminal
from noetl.cli.playbook_files import CannotRead, read_bounded

strict = click.option("--strict", is_flag=True, help="Spellings of v10 are errors, not warnings.")
legacy = click.option("--legacy", is_flag=True, help="Accept the surface of 2025-11.")


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@strict
@legacy
@click.option(
    "--format",
    "format",
    type=click.Choice(["text", "json", "github", "sarif"]),
    default="text",
    show_default=True,
    help="How findings are written.",
)
@talk
def validate(files: tuple[str, ...], strict: bool, legacy: bool, format: str) -> int:
    """Find all problems of all FILEs (- is stdin); run nothing.

    Exit code 0 without errors, 3 with errors in a playbook, 2 when a file could not be read.
    """
    from noetl import __version__
    from noetl.core.language import diagnostics as write
    from noetl.core.language.compile import compile_playbook
    from noetl.core.language.source.yaml_source import MAX_BYTES
    from noetl.tools import registry as tools

    specs = tools.specs()
    found: list[Any] = []
    sources: dict[str, str] = {}
    unreadable = False
    for name in files:
        try:
            text = read_bounded(name, MAX_BYTES)
        except CannotRead as problem:
            terminal.error(str(problem))
            unreadable = True
            continue
        file = "<stdin>" if name == "-" else name
        sources[file] = text.decode("utf-8", errors="replace")
        found += compile_playbook(text, file=file, specs=specs, strict=strict, legacy=legacy).diagnostics
    errors = sum(one.severity == "error" for one in found)
    if format == "text":
        sys.stdout.write(write.as_text(found, sources, color=terminal.colours(sys.stdout)))
        _sum_up(len(files), errors, len(found) - errors)
    elif format == "json":
        sys.stdout.write(write.as_json(found))
    elif format == "github":
        sys.stdout.write(write.as_github(found))
    else:
        sys.stdout.write(write.as_sarif(found, version=__version__))
    return USAGE if unreadable else INVALID if errors else 0


def _sum_up(files: int, errors: int, warnings: int) -> None:
    def count(number: int, word: str) -> str:
        return f"{number} {word}" if number == 1 else f"{number} {word}s"

    if not errors and not warnings:
        terminal.note(f"{count(files, 'file')}: no problems")
    else:
        terminal.note(f"{count(files, 'file')}: {count(errors, 'error')}, {count(warnings, 'warning')}")


@click.command()
@talk
def schema() -> None:
    """Print the JSON Schema of playbooks.

    It knows every tool kind this installation has. For editors that speak JSON Schema: `noetl schema >
    playbook.schema.json`, and as the first line of a playbook: # yaml-language-server:
    $schema=playbook.schema.json
    """
    from noetl.core.language.reference.json_schema import json_schema
    from noetl.tools.registry import specs

    terminal.json(json_schema(specs()))
