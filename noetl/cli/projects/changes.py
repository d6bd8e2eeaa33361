"""What applying a project changes at a target: new versions of playbooks, and resources.

A change is computed from digests: the files of the project are packed, and the file of the newest registered version
names the bundle it was registered with.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from noetl.cli.backend.base import Backend
from noetl.cli.playbook_files import shown
from noetl.cli.projects import resources
from noetl.cli.projects.named_files import Packed, pack, read_text
from noetl.cli.projects.project import Project, ProjectProfile, git_commit
from noetl.core.model.bundle import Bundle, split_bundle_file
from noetl.errors import NotFound, RequestRefused
from noetl.storage.ports.playbooks import Origin, StoredPlaybook


class PlaybookChange(Struct, frozen=True):
    """A playbook of the project beside its newest registered version."""

    action: Literal["create", "update", "keep"]
    path: str
    file: str  # relative to the project
    packed: Packed
    version: int  # the newest registered version; 0: none
    details: tuple[str, ...] = ()
    before: str = ""  # the registered text


class Changes(Struct, frozen=True):
    """Everything that applying a project would do."""

    playbooks: list[PlaybookChange]
    resources: list[resources.ResourceChange]
    origin: Origin

    @property
    def actions(self) -> list[str]:
        """What is done to each playbook and resource."""
        return [each.action for each in self.playbooks] + [each.action for each in self.resources]

    @property
    def pending(self) -> bool:
        """Whether anything differs."""
        return any(action != "keep" for action in self.actions)

    def document(self) -> dict[str, Any]:
        """The changes as JSON."""
        return {
            "project": self.origin.project,
            "commit": self.origin.commit or None,
            "modified": self.origin.modified,
            "playbooks": [
                {
                    "action": each.action,
                    "path": each.path,
                    "file": each.file,
                    "version": each.version or None,
                    "files": each.packed.names,
                    "details": list(each.details),
                }
                for each in self.playbooks
            ],
            "resources": [
                {"action": each.action, "kind": each.kind, "name": each.name, "details": list(each.details)}
                for each in self.resources
            ],
        }


class InvalidProject(RequestRefused):
    """Playbooks or resources of the project have errors; they have been reported."""


async def find_changes(backend: Backend, project: Project, profile: ProjectProfile, *, prune: bool) -> Changes:
    """Compare a project with a target; InvalidProject after all errors of playbooks and resources were reported."""
    from noetl.cli.output.terminal import terminal
    from noetl.cli.projects.resource_checks import check_resources

    packed: dict[Path, tuple[str, Packed]] = {}
    valid = True
    for file in project.playbooks():
        one = pack(file, project, profile.values)
        name = file.relative_to(project.root).as_posix()
        path = await _path(backend, one, name)
        valid = valid and path is not None
        packed[file] = (path or "", one)
        for reason in one.left_out:
            terminal.warn(f"{name}: {reason}")
    for file in project.resources():
        name = file.relative_to(project.root).as_posix()
        text = read_text(file)
        found = check_resources(text, name)
        terminal.diagnostics(found, text.encode())
        valid = valid and not found
    if not valid:
        raise InvalidProject("the project has errors; nothing was registered")
    if not packed:
        raise RequestRefused(
            f"there are no playbooks (files with `kind: Playbook`) in the project {shown(project.root)}"
        )
    _check_paths(packed, project.root)
    compared = [
        await _compare(backend, path, file.relative_to(project.root).as_posix(), one)
        for file, (path, one) in packed.items()
    ]
    wanted = resources.read_resources(project.resources(), project.root)
    paths = [each.path for each in compared]
    former = await _former_paths(backend, project, paths)
    for path in former:
        terminal.warn(f"{path} is no longer in the project; its versions stay in the catalog")
    changed = await resources.changes(backend, wanted, prune=prune, paths=[*paths, *former])
    wrong = await resources.problems(backend, changed, paths)
    if wrong:
        for problem in wrong:
            terminal.error(problem)
        raise InvalidProject("the project has errors; nothing was registered")
    commit, modified = git_commit(project.root)
    return Changes(
        compared,
        changed,
        Origin(project.name, profile.name, commit, modified),
    )


async def _former_paths(backend: Backend, project: Project, paths: list[str]) -> list[str]:
    """Registered playbooks of the project whose files were deleted or renamed."""
    return [
        each.path
        for each in await backend.playbooks()
        if each.origin.project == project.name and each.path not in paths
    ]


async def _path(backend: Backend, packed: Packed, name: str) -> str | None:
    """The catalog path of a playbook; None after its errors were printed."""
    from noetl.cli.output.terminal import terminal
    from noetl.core.language.compile import compile_playbook
    from noetl.tools.registry import specs

    text = packed.text.encode()
    found = await backend.check(text, name)
    errors = [one for one in found if one.severity == "error"]
    terminal.diagnostics(errors, text)
    playbook = None if errors else compile_playbook(packed.text, file=name, specs=specs()).playbook
    return None if playbook is None else playbook.path


def _check_paths(packed: dict[Path, tuple[str, Packed]], root: Path) -> None:
    seen: dict[str, Path] = {}
    for file, (path, _) in packed.items():
        if path in seen:
            one, other = (each.relative_to(root).as_posix() for each in (seen[path], file))
            raise RequestRefused(f"{one} and {other} have the same metadata.path {path!r}; give one of them another")
        seen[path] = file


async def _compare(backend: Backend, path: str, file: str, packed: Packed) -> PlaybookChange:
    try:
        newest = await backend.playbook(path)
    except NotFound:
        return PlaybookChange("create", path, file, packed, 0)
    if (newest.text, newest.file) == (packed.text, packed.file):
        return PlaybookChange("keep", path, file, packed, newest.version)
    before = split_bundle_file(newest.file)
    old = await backend.bundle(before[0]) if before else Bundle({})
    details = tuple(_differences(old, packed.bundle, file))
    return PlaybookChange("update", path, file, packed, newest.version, details, newest.text)


def _differences(old: Bundle, new: Bundle, own: str) -> Iterable[str]:
    for name in sorted({*old.files, *new.files} - {own}):
        if old.files.get(name) != new.files.get(name):
            yield f"{'+' if name not in old.files else '-' if name not in new.files else '~'} {name}"
    if old.profile != new.profile:
        yield "~ profile values"


def text_diff(change: PlaybookChange) -> str:
    """The unified diff of a playbook's text."""
    lines = difflib.unified_diff(
        change.before.splitlines(keepends=True),
        change.packed.text.splitlines(keepends=True),
        f"{change.path} version {change.version}" if change.version else "/dev/null",
        change.file,
    )
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


async def apply_changes(backend: Backend, found: Changes) -> list[StoredPlaybook]:
    """Send bundles, register playbooks, then change resources; returns the registered versions.

    Everything was checked before; what fails nevertheless can be repeated, and continues where it stopped."""
    changed = [change.packed for change in found.playbooks if change.action != "keep"]
    stored = [await register_packed(backend, packed, found.origin) for packed in changed]
    for each in found.resources:
        await resources.perform(backend, each)
    return stored


async def register_packed(
    backend: Backend, packed: Packed, origin: Origin | None = None, **modes: bool
) -> StoredPlaybook:
    """Send the bundle of a playbook, then register it."""
    if packed.file:
        await backend.add_bundle(packed.bundle, packed.contents)
    return await backend.register(packed.text, file=packed.file, origin=origin, **modes)
