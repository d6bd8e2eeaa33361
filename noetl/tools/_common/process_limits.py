"""Values of `spec.limits`: limits of processes, which may come from templates."""

from __future__ import annotations

from typing import Any

_MOST = 10**12  # in bytes, a limit of so many megabytes is below 2**63


def scaled_limit(name: str, value: Any, scale: int) -> int:
    """A limit in its smallest unit; raise ValueError if it is not a positive number."""
    try:
        number = 0.0 if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = 0.0
    if not 0 < number <= _MOST:
        raise ValueError(f"limits.{name} must be a positive number of at most {_MOST:,}, not {value!r}")
    return max(1, int(number * scale))
