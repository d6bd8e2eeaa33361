"""The reference page of templates says what the code has."""

from pathlib import Path

import pytest

from noetl.core.templates import budget as limits
from noetl.core.templates import free_names as names
from noetl.core.templates.status_helpers import STATUS_FUNCTIONS

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "templates.md").read_text()


def rows(title):
    section = PAGE.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]
    found = [line.split("|") for line in section.splitlines() if line.startswith("| `")]
    return {cells[1].strip().strip("`"): cells[2].strip().replace("&#124;", "|") for cells in found}


@pytest.mark.parametrize(
    ("title", "table"),
    [
        ("Filters", names.filters()),
        ("Tests", names.tests()),
        ("Functions", {**names.functions(), **STATUS_FUNCTIONS}),
    ],
)
def test_every_filter_test_and_function_has_its_line(title, table):
    assert rows(title) == table


def test_the_documented_limits_are_those_of_the_code():
    for bound in (
        limits.MAX_TEMPLATE,
        limits.MAX_TOKENS,
        limits.MAX_NODES,
        limits.MAX_NESTING,
        limits.MAX_TEXT,
        limits.MAX_ITEMS,
        limits.MAX_WEIGHT,
        limits.MAX_RANGE,
        limits.MAX_OPERATIONS,
        limits.MAX_BITS,
        limits.MAX_WIDTH,
        limits.MAX_DEPTH,
    ):
        assert f"{bound:,}" in PAGE
