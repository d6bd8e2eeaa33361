"""The packages that this installation needs, from its metadata: what is missing, and how to install it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import metadata
from typing import NamedTuple

DISTRIBUTION = "noetl-engine"
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)[^;]*(?:;.*extra\s*==\s*['\"]([^'\"]+)['\"])?")
_NOT_FOR_USERS = frozenset({"all", "dev"})


class Requirement(NamedTuple):
    """A package, and the extra that asks for it (empty: the plain install)."""

    package: str
    extra: str

    @property
    def installed(self) -> bool:
        """Whether the package is installed."""
        try:
            metadata.distribution(self.package)
        except metadata.PackageNotFoundError:
            return False
        return True


def requirements() -> Iterator[Requirement]:
    """The packages of the plain install and of each extra; none where the distribution has no metadata."""
    try:
        declared = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return
    for text in declared:
        found = _REQUIREMENT.match(text)
        if found is not None and found[2] not in _NOT_FOR_USERS:
            yield Requirement(found[1], found[2] or "")


def install_command(extra: str = "") -> str:
    """The command that installs an extra, or what the plain install lacks."""
    return f"pip install '{DISTRIBUTION}[{extra}]'" if extra else f"pip install --upgrade {DISTRIBUTION}"


def missing_module(module: str) -> str | None:
    """What to do about a module that cannot be imported, if it belongs to a package of this installation."""
    top = module.partition(".")[0]
    for each in requirements():
        if each.package.replace("-", "_").lower().startswith(top.lower()) and not each.installed:
            return f"{each.package} is not installed: {install_command(each.extra)}"
    return None
