"""Every kind has a reference page that matches its spec."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.generate.tool_pages import BY_HAND, last_parts, tool_pages, write_tool_pages
from noetl.tools import registry as tools

PAGES = Path(__file__).resolve().parents[2] / "docs" / "reference" / "tools"


def test_every_kind_has_a_page_and_no_other_page_exists():
    assert {path.name for path in PAGES.glob("*.md")} == set(tool_pages())


@pytest.mark.parametrize("name", sorted(tool_pages()))
def test_the_generated_part_of_a_page_is_up_to_date(name):
    written = (PAGES / name).read_text().partition(BY_HAND)[0]
    assert written.rstrip() == tool_pages()[name].rstrip(), "run `make docs`"


def test_the_fields_of_sources_and_targets_are_up_to_date():
    assert last_parts().keys() == {"transfer.md"}
    page = (PAGES / "transfer.md").read_text()
    assert page.endswith(f"\n{last_parts()['transfer.md']}"), "run `make docs`"
    assert all(
        f"| `{name}` |" in page for name in ("incremental", "schema", "nested", "partition_by", "only_new", "step")
    )


@pytest.mark.parametrize("kind", sorted(tools.kinds()))
def test_every_parameter_is_on_the_page(kind):
    page = (PAGES / f"{kind}.md").read_text()
    spec = tools.kinds()[kind]
    for name, field in spec.fields.items():
        assert all(f"`{word}`" in page for word in (name, *field.aliases)), name
    assert all(f"`{key}`" in page for key in spec.spec_keys)


def test_hand_written_parts_are_preserved(tmp_path):
    write_tool_pages(tmp_path)
    page = tmp_path / "noop.md"
    page.write_text(f"old\n{BY_HAND}\n\nmine\n")
    write_tool_pages(tmp_path)
    text = page.read_text()
    assert text.startswith("# `kind: noop`") and text.endswith(f"{BY_HAND}\n\nmine\n")
