"""`noetl apply` and `noetl diff`: register the playbooks and resources of a project, or show what would change."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from noetl.cli.output.terminal import json_options, terminal
from noetl.cli.projects.options import profile_option
from noetl.cli.projects.project import open_project
from noetl.cli.target import Target, key_option, with_target

if TYPE_CHECKING:
    from noetl.cli.projects.changes import Changes
    from noetl.cli.projects.project import Project

INVALID = 3
folder_argument = click.argument("folder", metavar="[DIR]", default=".", type=click.Path(exists=True, file_okay=False))
prune_option = click.option("--prune", is_flag=True, help="Delete resources of these playbooks that no file describes.")


@click.command()
@folder_argument
@click.option("--dry-run", is_flag=True, help="Show what would change; change nothing.")
@prune_option
@profile_option
@key_option
@with_target
@json_options
def apply(folder: str, dry_run: bool, prune: bool, profile: str | None, target: Target, as_json: bool) -> int:
    """Register the playbooks of a project with the files they name, and its resources.

    A playbook gets a new version if its text, one of its files or a value of the profile differs from the newest
    version. If one playbook has errors, nothing changes.
    """
    return _run(folder, profile, target, prune=prune, change=not dry_run, as_json=as_json)


@click.command()
@folder_argument
@prune_option
@profile_option
@with_target
@json_options
def diff(folder: str, prune: bool, profile: str | None, target: Target, as_json: bool) -> int:
    """Show what `noetl apply` would change.

    Exit code 0 if nothing differs, 1 if something would change.
    """
    return _run(folder, profile, target, prune=prune, change=False, as_json=as_json, differences=True)


def _run(
    folder: str,
    profile: str | None,
    target: Target,
    *,
    prune: bool,
    change: bool,
    as_json: bool,
    differences: bool = False,
) -> int:
    from noetl.cli.projects.changes import InvalidProject, apply_changes, find_changes, text_diff

    project = open_project(Path(folder))
    chosen = project.profile(profile)
    target = chosen.target(target)

    async def run() -> Changes:
        async with target.open() as backend:
            found = await find_changes(backend, project, chosen, prune=prune)
            if change:
                await apply_changes(backend, found)
            return found

    try:
        found = asyncio.run(run())
    except InvalidProject as problem:
        terminal.error(str(problem))
        return INVALID
    if as_json:
        terminal.json({**found.document(), "applied": change})
    elif differences:
        for each in found.playbooks:
            if each.action != "keep":
                terminal.data(text_diff(each).rstrip("\n"))
                for line in each.details:
                    terminal.data(f"  {line}")
    if not as_json:
        _show(found, project, change)
    return 1 if differences and found.pending else 0


def _show(found: Changes, project: Project, changed: bool) -> None:
    words = {"create": "new", "update": "changed", "delete": "deleted"}
    for each in found.playbooks:
        if each.action != "keep":
            files = len(each.packed.names) - 1
            extra = f", {files} {'file' if files == 1 else 'files'}" if files else ""
            version = f"{each.path} version {each.version + 1}"
            terminal.data(f"{words[each.action]:<8} playbook {version} ({each.file}{extra})")
    for one in found.resources:
        if one.action != "keep":
            details = f": {'; '.join(one.details)}" if one.details else ""
            terminal.data(f"{words[one.action]:<8} {one.kind.lower()} {one.name}{details}")
    counts = [(found.actions.count(action), words.get(action, "unchanged")) for action in (*words, "keep")]
    summary = ", ".join(f"{count} {word}" for count, word in counts if count)
    commit = f", commit {found.origin.commit[:12]}{' with changes' if found.origin.modified else ''}"
    what = "applied" if changed else "compared"
    terminal.note(f"{project.name} {what}: {summary}{commit if found.origin.commit else ''}")
