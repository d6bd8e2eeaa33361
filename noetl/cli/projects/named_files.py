"""The files that a playbook names: scripts, SQL, data, and child playbooks by relative path.

Every text in a playbook (and in the files it names) is split into words; a word that is the path of an existing file of
the project, relative to the playbook or to the file that names it, is a named file. So all kinds and parameters are
covered, and commands, SQL and code as well. Values of templates are not known here: `include` in `noetl.toml` lists
such files. Absolute paths are files of the worker. Secrets (files of the keychain, private keys, `.env`), databases and
what git ignores do not travel unless `include` lists them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from noetl.cli.playbook_files import shown
from noetl.cli.projects.project import Project, git_commit, ignored_by_git, project_around
from noetl.core.model.bundle import Bundle, Profile, bundle_file, file_digest
from noetl.errors import RequestRefused
from noetl.storage.ports.playbooks import Origin

MAX_FILE_BYTES = 16 << 20
MAX_SCANNED_BYTES = 1 << 20
SECRET_SUFFIXES = (".pem", ".key", ".p12", ".pfx", ".jks")
DATABASE_SUFFIXES = (".duckdb", ".db", ".sqlite", ".sqlite3", ".wal")
PLAYBOOK_SUFFIXES = (".yaml", ".yml")
_WORDS = re.compile(r"[\s'\"`(),;=<>|&\[\]{}]+")
_TEMPLATE_PATH = re.compile(r"(?:[\w.-]+/)+[\w.-]*\{\{[^{}]*\}\}[\w.-]*(?:/[\w.-]+)*")
_IMPORTS = re.compile(r"^\s*(?:from|import)\s+([\w.]+)", re.MULTILINE)


class Packed(Struct, frozen=True):
    """A playbook with its bundle: its text, its file in the bundle, and the contents by digest."""

    text: str
    file: str  # empty: it names no file and has no profile, so it needs no bundle
    bundle: Bundle
    contents: dict[str, bytes]
    left_out: tuple[str, ...] = ()  # named files that do not travel, with the reason

    @property
    def names(self) -> list[str]:
        """The paths in the bundle."""
        return sorted(self.bundle.files)


def pack(file: Path, project: Project, profile: Profile | None = None) -> Packed:
    """The bundle of a playbook: the playbook and the files that it names, transitively."""
    finder = _Finder(project)
    finder.add(file)
    for each in project.included():
        finder.add(each, chosen=True)
    finder.follow()
    finder.found -= ignored_by_git(project.root, finder.found) - {Path(os.path.abspath(file)), *project.included()}
    contents: dict[str, bytes] = {}
    files: dict[str, str] = {}
    for each in sorted(finder.found):
        content = _read(each)
        digest = file_digest(content)
        contents[digest] = content
        files[each.relative_to(project.root).as_posix()] = digest
    bundle = Bundle(files, profile or Profile())
    text = _text(_read(file), file)
    name = file.absolute().relative_to(project.root).as_posix()
    alone = len(files) == 1 and bundle.profile == Profile()
    return Packed(text, "" if alone else bundle_file(bundle.digest, name), bundle, contents, tuple(finder.left_out))


def pack_file(name: str, content: bytes, profile: Profile | None = None) -> tuple[Packed, Origin]:
    """The bundle of a playbook file outside of `noetl apply`; `-` (stdin) has no files."""
    if name == "-":
        return Packed(_text(content, Path("<stdin>")), "", Bundle({}), {}), Origin()
    file = Path(name).expanduser().resolve()
    commit, modified = git_commit(file.parent)
    project = project_around(file.parent)
    return pack(file, project, profile), Origin(project.name, "", commit, modified)


class _Finder:
    """Collects the files that a playbook reaches."""

    def __init__(self, project: Project) -> None:
        self._root = Path(os.path.abspath(project.root))
        self.found: set[Path] = set()
        self.left_out: list[str] = []
        self._unread: list[Path] = []

    def add(self, file: Path, *, chosen: bool = False) -> None:
        """Add a file; `chosen` by the author, not only named."""
        file = Path(os.path.abspath(file))
        if file in self.found or not (chosen or self._travels(file)):
            return
        if file.stat().st_size > MAX_FILE_BYTES:
            self._leave_out(file, f"is larger than {MAX_FILE_BYTES >> 20} MB and does not travel")
            return
        self.found.add(file)
        self._unread.append(file)

    def follow(self) -> None:
        """Add what the added files name."""
        bases: list[Path] = []  # folders of playbooks: relative paths in scripts start there
        while self._unread:
            file = self._unread.pop()
            if file.suffix in PLAYBOOK_SUFFIXES and file.parent not in bases:
                bases.append(file.parent)
            for pattern in _patterns(file):
                for each in sorted(file.parent.glob(pattern)):
                    if each.is_file() and each.is_relative_to(self._root):
                        self.add(each)
            for word in _names(file):
                for base in dict.fromkeys((file.parent, *bases)):
                    found = self._existing(base, word)
                    if found is not None:
                        self.add(found)
                        break

    def _existing(self, base: Path, word: str) -> Path | None:
        candidate = Path(os.path.normpath(base / word))
        try:
            if not candidate.is_file():
                return None
            if not candidate.is_relative_to(self._root):
                if word.startswith("../") and word.rpartition(".")[2].isalnum():
                    self._note(f"{word} is outside of the project and does not travel; move it into the project")
                return None
            return candidate
        except (OSError, ValueError):  # no file name: too long, or with a NUL character
            return None

    def _travels(self, file: Path) -> bool:
        name = file.name
        if not file.resolve().is_relative_to(self._root.resolve()):
            self._leave_out(
                file, "is a link to a file outside of the project; copy it, or list it under project.include"
            )
            return False
        if name.startswith(".") or file.suffix in SECRET_SUFFIXES:
            self._leave_out(file, "may be a secret; use the keychain, or list it under project.include")
            return False
        return file.suffix not in DATABASE_SUFFIXES  # what an earlier run wrote

    def _leave_out(self, file: Path, reason: str) -> None:
        self._note(f"{file.relative_to(self._root).as_posix()} {reason}")

    def _note(self, text: str) -> None:
        if text not in self.left_out:
            self.left_out.append(text)


def _names(file: Path) -> Iterator[str]:
    """The words of a text file that may be relative paths."""
    if file.stat().st_size > MAX_SCANNED_BYTES:
        return
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        return
    if file.suffix in PLAYBOOK_SUFFIXES:
        texts = list(_strings(_without_secrets(text)))
    else:
        texts = [text]
    seen: set[str] = set()
    for each in texts:
        for word in (each, *(part for part in _WORDS.split(each) if "." in part or "/" in part)):
            word = word.strip().removeprefix("file://")
            if word and len(word) <= 255 and not word.startswith(("/", "~")) and "\n" not in word and word not in seen:
                seen.add(word)
                yield word
    if file.suffix == ".py":
        for module in _IMPORTS.findall(text):
            path = module.replace(".", "/")
            yield from (f"{path}.py", f"{path}/__init__.py")


def _patterns(file: Path) -> Iterator[str]:
    """`models/{{ iter.model }}.sql` in a playbook is every file `models/*.sql`; the first part must be known."""
    if file.suffix not in PLAYBOOK_SUFFIXES or file.stat().st_size > MAX_SCANNED_BYTES:
        return
    try:
        texts = list(_strings(_without_secrets(file.read_text(encoding="utf-8-sig"))))
    except UnicodeDecodeError:
        return
    for text in texts:
        if "{{" in text and _TEMPLATE_PATH.fullmatch(text):
            yield re.sub(r"\{\{.*?\}\}", "*", text)


def _without_secrets(text: str) -> Any:
    """The document without its keychain, whose files are secrets of a machine; a text that is not valid, as it is."""
    from noetl.core.language.source.nodes import data_of
    from noetl.core.language.source.yaml_source import read_source

    document = data_of(read_source(text).root)
    return {key: value for key, value in document.items() if key != "keychain"} if isinstance(document, dict) else text


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        if value.get("kind") == "playbook" and isinstance(value.get("path"), str):
            yield from (value["path"] + suffix for suffix in PLAYBOOK_SUFFIXES)
        for each in value.values():
            yield from _strings(each)
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as problem:
        raise RequestRefused(f"{shown(file)}: cannot be read: {problem.strerror}") from None


def read_text(file: Path) -> str:
    """The text of a file of the project."""
    return _text(_read(file), file)


def _text(content: bytes, file: Path) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise RequestRefused(f"{shown(file)} is not UTF-8 text (byte {problem.start})") from None
