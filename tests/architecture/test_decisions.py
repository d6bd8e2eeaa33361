"""Decisions are numbered without gaps and have a status and a date, and are listed in the index."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "decisions"
PAGES = sorted(FOLDER.glob("[0-9]*.md"))


def test_numbers_have_no_gaps():
    assert [int(page.name[:4]) for page in PAGES] == list(range(1, len(PAGES) + 1))


def test_each_has_title_status_and_date():
    for page in PAGES:
        lines = page.read_text().splitlines()
        assert re.fullmatch(rf"# {page.name[:4]}\. .+", lines[0]), page.name
        assert re.match(r"Status: (accepted|superseded by \d{4}), \d{4}-\d\d-\d\d$", lines[2]), page.name


def test_the_index_lists_each_once():
    text = (FOLDER / "index.md").read_text()
    for page in PAGES:
        title = page.read_text().splitlines()[0].split(". ", 1)[1]
        assert f"| {int(page.name[:4])} | [{title}]({page.name}) |" in text, page.name
