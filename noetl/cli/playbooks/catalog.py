"""`noetl register` and `noetl catalog`: versions of playbooks under their paths, locally or on a server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click
import msgspec

from noetl.cli.output.terminal import json_options, terminal
from noetl.cli.playbooks.validate import legacy, strict
from noetl.cli.run import MAX_READ
from noetl.cli.target import Target, key_option, with_target

if TYPE_CHECKING:
    from noetl.storage.ports.playbooks import StoredPlaybook


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@strict
@legacy
@key_option
@with_target
@json_options
def register(files: tuple[str, ...], strict: bool, legacy: bool, target: Target, as_json: bool) -> int:
    """Register playbooks in the catalog.

    Each is registered under its metadata.path. A text that differs from the newest version becomes a new
    version; the same text again changes nothing. Files that a playbook names (scripts, SQL, data, child playbooks by
    relative path) are registered with it. If one of the files has errors, none is registered.
    """
    from noetl.cli.app import INVALID
    from noetl.cli.playbook_files import read_bounded
    from noetl.cli.projects.changes import register_packed
    from noetl.cli.projects.named_files import pack_file
    from noetl.core.language.diagnostic_codes import INSTALLATION_CODES

    contents = {name: read_bounded(name, MAX_READ) for name in files}

    async def put() -> list[StoredPlaybook] | None:
        async with target.open() as backend:
            invalid = False
            for name, content in contents.items():
                found = await backend.check(content, name, strict=strict, legacy=legacy)
                errors = [one for one in found if one.severity == "error"]
                missing = [one for one in found if one.code in INSTALLATION_CODES]
                if errors or missing:
                    terminal.diagnostics(errors or missing, content)
                invalid = invalid or bool(errors)
            if invalid:
                return None
            return [
                await register_packed(backend, *pack_file(name, content), strict=strict, legacy=legacy)
                for name, content in contents.items()
            ]

    stored = asyncio.run(put())
    if stored is None:
        return INVALID
    if as_json:
        terminal.json([_document(one) for one in stored])
    else:
        for one in stored:
            terminal.data(f"{one.path} version {one.version}")
    return 0


@click.group()
def catalog() -> None:
    """Show registered playbooks."""


@catalog.command("list")
@click.option("--search", metavar="TEXT", help="Only paths that contain this text.")
@with_target
@json_options
def list_(search: str | None, target: Target, as_json: bool) -> None:
    """List the newest version of every path."""

    async def listed() -> list[StoredPlaybook]:
        async with target.open() as backend:
            return await backend.playbooks(search)

    found = asyncio.run(listed())
    if as_json:
        terminal.json([_document(one) for one in found])
    elif found:
        terminal.table(("path", "version", "registered"), [(one.path, one.version, _when(one)) for one in found])
    else:
        terminal.note("no playbooks are registered")


@catalog.command()
@click.argument("path")
@click.option("--version", type=click.IntRange(min=1), metavar="N", help="This version instead of the newest.")
@with_target
@json_options
def show(path: str, version: int | None, target: Target, as_json: bool) -> None:
    """Print the text of a registered playbook."""

    async def found() -> StoredPlaybook:
        async with target.open() as backend:
            return await backend.playbook(path, version)

    stored = asyncio.run(found())
    if as_json:
        terminal.json({**_document(stored), "text": stored.text})
    else:
        terminal.document(stored.text)


def _document(stored: StoredPlaybook) -> dict[str, Any]:
    origin = {name: value for name, value in msgspec.structs.asdict(stored.origin).items() if value}
    return {"path": stored.path, "version": stored.version, "registered_at": _when(stored), **origin}


def _when(stored: StoredPlaybook) -> str:
    from noetl.core.model.events import instant

    return instant(stored.registered_at)
