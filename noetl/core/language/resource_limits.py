"""`executor.spec.policy.defaults.resources`: limits of the processes of `python` and `shell` tasks."""

from __future__ import annotations

import re
from typing import Any

from noetl.core.model.durations import finite

RESOURCES = ("memory", "cpu_s", "files")
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?\s*\Z", re.IGNORECASE)
_MEGABYTES = {"": 1 / (1 << 20), "k": 1 / 1024, "m": 1, "g": 1024, "t": 1 << 20}
_KINDS = ("python", "shell")


def megabytes(value: Any) -> float | None:
    """A size as text with a unit ("512MB", "2GiB"), or a number of megabytes; None if it is neither."""
    if isinstance(value, int | float):
        try:
            return finite(value) if value > 0 else None
        except ValueError:
            return None
    found = _SIZE.match(value) if isinstance(value, str) else None
    size = float(found.group(1)) * _MEGABYTES[found.group(2).lower()] if found else 0
    return size if size > 0 else None


def with_limits(defaults: dict[str, Any]) -> dict[str, Any]:
    """The defaults with `resources` as `limits` of the kinds that start processes."""
    resources = defaults.pop("resources", None)
    if not isinstance(resources, dict):
        return defaults
    limits: dict[str, Any] = {}
    if resources.get("memory") is not None:
        limits["memory_mb"] = megabytes(resources["memory"])
    for name, limit in (("cpu_s", "cpu_s"), ("files", "open_files")):
        if resources.get(name) is not None:
            limits[limit] = resources[name]
    for kind in _KINDS:
        own: dict[str, Any] = defaults.get(kind) or {}
        defaults[kind] = {**own, "limits": {**limits, **(own.get("limits") or {})}}
    return defaults
