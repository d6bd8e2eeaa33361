"""Bundles: the files that travel with a playbook, identified by their content.

A playbook of a bundle has the file `bundle:DIGEST/PATH`. The digest covers the content of every file and the profile,
so the digest of the playbook, which covers its file, identifies all that its runs read.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections.abc import Iterable
from typing import Any

from msgspec import Struct, field

PREFIX = "bundle:"
DIGEST_LENGTH = 32
MAX_PATH_BYTES = 1024
MAX_NAME_BYTES = 255  # of one part of a path, as file systems have it


class Profile(Struct, frozen=True, omit_defaults=True):
    """Values of one environment: workload defaults, and other names of stored credentials."""

    workload: dict[str, Any] = field(default_factory=dict)
    credentials: dict[str, str] = field(default_factory=dict)


class Bundle(Struct, frozen=True, omit_defaults=True):
    """Files by their path in the bundle (`/` as separator) with the SHA-256 of their content, and a profile."""

    files: dict[str, str]
    profile: Profile = Profile()

    @property
    def digest(self) -> str:
        """Identifies the content of the bundle."""
        content = [sorted(self.files.items()), self.profile.workload, sorted(self.profile.credentials.items())]
        text = json.dumps(content, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_LENGTH]


def file_digest(content: bytes) -> str:
    """Identifies the content of a file."""
    return hashlib.sha256(content).hexdigest()


def is_inner_path(path: str) -> bool:
    """Whether a path names a file inside of any folder it is joined to, on any system, and in one spelling only."""
    if not path.isprintable() or "\\" in path or path.startswith("/") or posixpath.normpath(path) != path:
        return False
    parts = [part.encode("utf-8", "surrogatepass") for part in path.split("/")]
    return (
        parts[0] not in (b".", b"..")
        and sum(map(len, parts)) + len(parts) <= MAX_PATH_BYTES
        and max(map(len, parts)) <= MAX_NAME_BYTES
    )


def file_and_folder(paths: Iterable[str]) -> str | None:
    """A path that is a file and also the folder of another one; None if there is none."""
    files = set(paths)
    for path in files:
        parent = posixpath.dirname(path)
        while parent:
            if parent in files:
                return parent
            parent = posixpath.dirname(parent)
    return None


def bundle_file(digest: str, path: str) -> str:
    """The file of a playbook in a bundle."""
    return f"{PREFIX}{digest}/{path}"


def split_bundle_file(file: str) -> tuple[str, str] | None:
    """Digest and path of a file in a bundle; None for other files."""
    if not file.startswith(PREFIX):
        return None
    digest, _, path = file.removeprefix(PREFIX).partition("/")
    return digest, path


def shown_file(file: str) -> str:
    """The file as messages show it."""
    found = split_bundle_file(file)
    return found[1] if found else file
