"""Names of values that are secret by convention: the run form does not show them, and read models mask them.

Values of the keychain are masked by content wherever they appear. A secret that is passed in `workload` is an ordinary
value of the log; documents for people show it as `***`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MASK = "***"

_ALWAYS = r"passw(or)?d|passphrase|pwd|secret|(api|access|private)[_-]?key|authorization"
SECRET_NAME = rf"{_ALWAYS}|token|credential|cookie|bearer"

_NUMBERS = re.compile(_ALWAYS, re.IGNORECASE)  # `tokens: 4096` is a count
_SECRET = re.compile(SECRET_NAME, re.IGNORECASE)


def is_secret_name(name: str) -> bool:
    """Whether a value with this name is secret by convention."""
    return _SECRET.search(name) is not None


def mask_secret_names(value: Any) -> Any:
    """JSON data with the texts under secret names masked, also in lists; the same object if it has none."""
    if isinstance(value, Mapping):
        masked = {
            key: _masked_texts(each, numbers=_NUMBERS.search(str(key)) is not None)
            if is_secret_name(str(key))
            else mask_secret_names(each)
            for key, each in value.items()
        }
        return masked if any(masked[key] is not value[key] for key in masked) else value
    if isinstance(value, list):
        items = [mask_secret_names(each) for each in value]
        return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
    return value


def _masked_texts(value: Any, *, numbers: bool) -> Any:
    """A value under a secret name: its texts are masked, those of lists too; mappings have names of their own."""
    if isinstance(value, str):
        return MASK if value else value
    if numbers and isinstance(value, int | float) and not isinstance(value, bool):
        return MASK
    if isinstance(value, list):
        return [_masked_texts(each, numbers=numbers) for each in value]
    return mask_secret_names(value)
