"""The project of a folder: its `noetl.toml` with the tables `[project]` and `[profile.NAME]`, and its files."""

from __future__ import annotations

import os
import subprocess
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from noetl.cli.playbook_files import shown
from noetl.cli.target import Target
from noetl.core.model.bundle import Profile
from noetl.errors import RequestRefused
from noetl.settings import PROJECT_FILE, PROJECT_TABLES, similar

RESOURCE_SUFFIXES = (".resource.yaml", ".resource.yml")
TEST_SUFFIXES = (".test.yaml", ".test.yml")
IGNORED_FOLDERS = frozenset({"node_modules", "__pycache__", "build", "dist", "venv"})


class ProjectProfile(Struct, frozen=True):
    """A profile: the server, and the values that playbooks get."""

    name: str = ""
    server: str | None = None
    values: Profile = Profile()

    def target(self, target: Target) -> Target:
        """The target with the server of the profile, unless the command names another."""
        if self.server is None or target.server is not None or target.store is not None:
            return target
        return target._replace(server=self.server)


class Project(Struct, frozen=True):
    """A folder and what its `noetl.toml` says about the project."""

    root: Path
    name: str
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    profiles: dict[str, ProjectProfile] = field(default_factory=dict)

    def profile(self, name: str | None) -> ProjectProfile:
        """A profile by name; no name is the empty profile."""
        if name is None:
            return ProjectProfile()
        if name not in self.profiles:
            raise RequestRefused(f"{PROJECT_FILE} has no [profile.{name}]{similar(name, list(self.profiles))}")
        return self.profiles[name]

    def playbooks(self) -> list[Path]:
        """The playbook files: documents of `kind: Playbook` that are neither tests nor resources."""
        return [file for file in self.files() if is_playbook(file)]

    def resources(self) -> list[Path]:
        """The resource files."""
        return [file for file in self.files() if file.name.endswith(RESOURCE_SUFFIXES)]

    def files(self) -> Iterator[Path]:
        """All files, without hidden ones, build folders and nested projects."""
        for folder, folders, names in os.walk(self.root):
            here = Path(folder)
            folders[:] = sorted(
                each
                for each in folders
                if not each.startswith(".")
                and each not in IGNORED_FOLDERS
                and not (here / each / PROJECT_FILE).exists()
                and not self._excluded(here / each)
            )
            yield from (here / name for name in sorted(names) if not name.startswith(".") and self._kept(here / name))

    def _kept(self, file: Path) -> bool:
        return file.is_file() and not self._excluded(file)

    def _excluded(self, file: Path) -> bool:
        name = file.relative_to(self.root).as_posix()
        return any(fnmatch(name, pattern) for pattern in self.exclude)

    def included(self) -> list[Path]:
        """The files that travel with every playbook."""
        found = {file for pattern in self.include for file in self.root.glob(pattern) if file.is_file()}
        return sorted(found)


def is_playbook(file: Path) -> bool:
    """Whether a file is a playbook, by its name and its first lines."""
    if not is_playbook_name(file.name):
        return False
    with file.open("rb") as opened:
        return starts_like_playbook(opened.read(64 * 1024))


def is_playbook_name(name: str) -> bool:
    """Whether a file of this name can be a playbook: YAML, and neither a test nor a resource file."""
    return name.endswith((".yaml", ".yml")) and not name.endswith((*RESOURCE_SUFFIXES, *TEST_SUFFIXES))


def starts_like_playbook(head: bytes) -> bool:
    """Whether a text that starts like this is a playbook."""
    return b"kind: Playbook" in head or b"noetl.io/" in head


def find_root(folder: Path) -> Path | None:
    """The nearest folder with a `noetl.toml`, from `folder` upwards."""
    folder = folder.absolute()
    return next((each for each in (folder, *folder.parents) if (each / PROJECT_FILE).is_file()), None)


def open_project(folder: Path) -> Project:
    """The project of a folder; RequestRefused when there is none or its file is invalid."""
    root = find_root(folder)
    if root is None:
        raise RequestRefused(f"{folder} is not in a project: there is no {PROJECT_FILE}; `noetl new` creates a project")
    return read_project(root)


def read_project(root: Path) -> Project:
    """The project of a root folder; without a `noetl.toml` one that is named after the folder."""
    path = root / PROJECT_FILE
    file = shown(path)
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except tomllib.TOMLDecodeError as problem:
        raise RequestRefused(f"{file} is not valid TOML: {problem}") from None
    except UnicodeDecodeError as problem:
        raise RequestRefused(f"{file} is not UTF-8 text (byte {problem.start})") from None
    except OSError as problem:
        raise RequestRefused(f"{file}: cannot be read: {problem.strerror}") from None
    for key in document:
        if key not in PROJECT_TABLES and (meant := similar(key, [*PROJECT_TABLES])):
            raise RequestRefused(f"{file}: unknown table [{key}]{meant}")
    table = _table(document, "project", file)
    unknown = [key for key in table if key not in ("name", "include", "exclude")]
    if unknown:
        known = similar(unknown[0], ["name", "include", "exclude"])
        raise RequestRefused(f"{file}: unknown key project.{unknown[0]}{known}")
    return Project(
        root,
        str(table.get("name") or root.absolute().name),
        _patterns(table, "include", file),
        _patterns(table, "exclude", file),
        {name: _profile(name, value, file) for name, value in _table(document, "profile", file).items()},
    )


def _table(document: Mapping[str, Any], name: str, file: str) -> dict[str, Any]:
    value = document.get(name, {})
    if not isinstance(value, dict):
        raise RequestRefused(f"{file}: {name} must be a table")
    return value


def _patterns(table: Mapping[str, Any], name: str, file: str) -> tuple[str, ...]:
    value = table.get(name, [])
    inside = [each for each in value if isinstance(each, str) and each and not each.startswith("/")
              and ".." not in each.split("/")] if isinstance(value, list) else None  # fmt: skip
    if inside != value:
        raise RequestRefused(f"{file}: project.{name} must be a list of patterns of files inside the project")
    return tuple(value)


def _profile(name: str, value: Any, file: str) -> ProjectProfile:
    where = f"{file}: profile.{name}"
    if not isinstance(value, dict):
        raise RequestRefused(f"{where} must be a table")
    keys = ["server", "workload", "credentials"]
    for key in value:
        if key not in keys:
            raise RequestRefused(f"{where}: unknown key {key}{similar(key, keys)}")
    workload, credentials = value.get("workload", {}), value.get("credentials", {})
    if not isinstance(workload, dict):
        raise RequestRefused(f"{where}.workload must be a table of workload values")
    if not isinstance(credentials, dict) or not all(isinstance(each, str) for each in credentials.values()):
        raise RequestRefused(f"{where}.credentials must map names in playbooks to names of stored credentials")
    server = value.get("server")
    if server is not None and not isinstance(server, str):
        raise RequestRefused(f"{where}.server must be a URL")
    return ProjectProfile(name, server, Profile(workload, credentials))


def git_commit(folder: Path) -> tuple[str, bool]:
    """The commit that is checked out in a folder, and whether files of the folder differ from it; empty without git."""

    commit = _git(folder, "rev-parse", "HEAD")
    return (commit, bool(_git(folder, "status", "--porcelain", "--", "."))) if commit else ("", False)


def project_around(folder: Path) -> Project:
    """The project of a folder; outside of one, the git repository or the folder itself."""
    root = find_root(folder)
    if root is not None:
        return read_project(root)
    top = _git(folder, "rev-parse", "--show-toplevel")
    return Project(Path(top) if top else folder, "")


def ignored_by_git(folder: Path, files: Iterable[Path]) -> set[Path]:
    """Which of these files git ignores; none outside of a repository."""
    names = "\0".join(map(str, files))
    found = _git(folder, "check-ignore", "-z", "--stdin", text=names)
    return {Path(name) for name in (found or "").split("\0") if name}


def _git(folder: Path, *words: str, text: str | None = None) -> str | None:
    """The output of a git command; None without git or outside of a repository."""
    try:
        ran = subprocess.run(["git", "-C", str(folder), *words], input=text, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return ran.stdout.strip() if ran.returncode == 0 else None
