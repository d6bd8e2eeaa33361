"""Bundles: the files that travel with a playbook, identified by their content.

A playbook of a bundle has the file `bundle:DIGEST/PATH`. The digest covers the content of every file and the profile,
so the digest of the playbook, which covers its file, identifies all that its runs read.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from msgspec import Struct, field

PREFIX = "bundle:"
DIGEST_LENGTH = 32


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
