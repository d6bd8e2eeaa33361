"""Names of values that are secret by convention: the run form does not show them, and read models mask them.

Values of the keychain are masked by content wherever they appear. A secret that is passed in `workload` is an ordinary
value of the log; documents for people show it as `***`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MASK = "***"

SECRET_NAME = r"passw(or)?d|secret|token|api_?key|private_?key|credential|authorization"

_SECRET = re.compile(SECRET_NAME, re.IGNORECASE)


def is_secret_name(name: str) -> bool:
    """Whether a value with this name is secret by convention."""
    return _SECRET.search(name) is not None


def mask_secret_names(value: Any) -> Any:
    """JSON data with the texts under secret names masked, also in lists; the same object if it has none."""
    if isinstance(value, Mapping):
        masked = {
            key: _masked_texts(each) if is_secret_name(str(key)) else mask_secret_names(each)
            for key, each in value.items()
        }
        return masked if any(masked[key] is not value[key] for key in masked) else value
    if isinstance(value, list):
        items = [mask_secret_names(each) for each in value]
        return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
    return value


def _masked_texts(value: Any) -> Any:
    """A value under a secret name: its texts are masked, those of lists too; mappings have names of their own."""
    if isinstance(value, str):
        return MASK if value else value
    if isinstance(value, list):
        return [_masked_texts(each) for each in value]
    return mask_secret_names(value)
