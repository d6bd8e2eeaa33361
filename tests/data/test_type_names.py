"""The pattern of the validator accepts exactly the names of types that a source accepts."""

from __future__ import annotations

import re

import pytest

from noetl.data.types.type_names import _NAMES, PATTERN, type_name

OTHERS = ["decimal(10,2)", "decimal(39,2)", "numeric ( 10 )", "decimal(10, 2)[]", "number(3)", "tex", "bigint[][]", "nope",
          "NUMERIC", "Double  Precision", "decimal(0)", "text []"]  # fmt: skip


@pytest.mark.parametrize("name", [*_NAMES, *(f"{name}[]" for name in _NAMES), *OTHERS])
def test_the_pattern_accepts_the_names_of_types(name: str):
    assert bool(re.fullmatch(PATTERN, " ".join(name.lower().split()))) == (type_name(name) is not None)
