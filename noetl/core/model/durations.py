"""Durations in playbooks and settings: `30s`, `15m`, `24h`, `7d`, `2w`."""

from __future__ import annotations

import re

_TTL = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)?\s*$")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0, None: 1.0}


def seconds(ttl: str | int | float | None) -> float | None:
    """A ttl (`30s`, `15m`, `24h`, `7d`, `2w`, or a number of seconds) as seconds; None: no expiry."""
    if ttl is None:
        return None
    match = _TTL.match(str(ttl))
    if not match:
        raise ValueError(f"ttl {ttl!r} is not a duration: write 30s, 15m, 24h or 7d")
    return float(match[1]) * _UNITS[match[2]]
