"""The catalogue of this installation: playbooks under their paths, in versions."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import click

from noetl.commands.playbooks import legacy, strict
from noetl.commands.run import MAX_READ, store_option
from noetl.commands.terminal import as_json, talk, terminal

if TYPE_CHECKING:
    from noetl.ports import StoredPlaybook

PAGE = 500


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@strict
@legacy
@store_option
@as_json
@talk
def register(files: tuple[str, ...], strict: bool, legacy: bool, store: str | None, as_json: bool) -> int:
    """Put playbooks into the catalogue.

    Each goes under its own metadata.path. A text that differs from the newest version becomes a new
    version; the same text again changes nothing. When one of the files has errors, none is registered.
    """
    from noetl.commands.files import read_bounded
    from noetl.commands.program import INVALID
    from noetl.dsl.compile import compile_playbook
    from noetl.tools import specs

    texts: list[str] = []
    invalid = False
    for name in files:
        content = read_bounded(name, MAX_READ)
        compilation = compile_playbook(content, file=name, specs=specs(), strict=strict, legacy=legacy)
        if compilation.playbook is None:
            terminal.diagnostics((one for one in compilation.diagnostics if one.severity == "error"), content)
            invalid = True
        else:
            texts.append(content.decode("utf-8-sig"))
    if invalid:
        return INVALID

    async def put() -> list[StoredPlaybook]:
        from noetl.commands.engines import opened
        from noetl.control.catalogue import Source

        async with opened(store) as engine:
            catalogue = engine.orchestrator.catalogue
            return [await catalogue.register(Source(text), time.time(), strict=strict, legacy=legacy) for text in texts]

    stored = asyncio.run(put())
    if as_json:
        terminal.json([_document(one) for one in stored])
    else:
        for one in stored:
            terminal.data(f"{one.path} version {one.version}")
    return 0


@click.group()
def catalog() -> None:
    """Show what is registered."""


@catalog.command("list")
@click.option("--search", metavar="WORDS", help="Only paths that contain this.")
@store_option
@as_json
@talk
def list_(search: str | None, store: str | None, as_json: bool) -> None:
    """List the newest version of every path."""

    async def listed() -> list[StoredPlaybook]:
        from noetl.commands.engines import opened

        found: list[StoredPlaybook] = []
        async with opened(store) as engine:
            while page := await engine.orchestrator.catalogue.list(
                search=search, after=found[-1].path if found else None, limit=PAGE
            ):
                found += page
        return found

    found = asyncio.run(listed())
    if as_json:
        terminal.json([_document(one) for one in found])
    elif found:
        terminal.table(("path", "version", "registered"), [(one.path, one.version, _when(one)) for one in found])
    else:
        terminal.note("nothing is registered")


@catalog.command()
@click.argument("path")
@click.option("--version", type=click.IntRange(min=1), metavar="N", help="This version instead of the newest.")
@store_option
@as_json
@talk
def show(path: str, version: int | None, store: str | None, as_json: bool) -> None:
    """Print a registered playbook's text."""

    async def found() -> StoredPlaybook | None:
        from noetl.commands.engines import opened

        async with opened(store) as engine:
            return await engine.orchestrator.catalogue.registered(path, version)

    stored = asyncio.run(found())
    if stored is None:
        from noetl.errors import NotFound

        which = f" version {version}" if version is not None else ""
        raise NotFound(f"there is no playbook {path}{which} in the catalogue; `noetl catalog list` shows what there is")
    if as_json:
        terminal.json({**_document(stored), "text": stored.text})
    else:
        terminal.data(stored.text)


def _document(stored: StoredPlaybook) -> dict[str, Any]:
    return {"path": stored.path, "version": stored.version, "registered_at": _when(stored)}


def _when(stored: StoredPlaybook) -> str:
    from noetl.model.events import instant

    return instant(stored.registered_at)
