"""Patterns of keys."""

from __future__ import annotations

import pytest

from noetl.data.key_patterns import key_pattern


@pytest.mark.parametrize(
    ("text", "folder", "matched", "others"),
    [
        ("in/*.csv", "in", ["in/a.csv", "in/.csv", "in/a b.csv"], ["in/x/a.csv", "in/a.csv.gz", "on/a.csv"]),
        ("in/**/*.csv", "in", ["in/a.csv", "in/x/y/a.csv"], ["in/a.txt"]),
        ("in/**", "in", ["in/a", "in/x/y"], ["on/a"]),
        ("a?/[0-9].x", "", ["ab/7.x"], ["a/7.x", "ab/77.x", "ab/x.x"]),
        ("in/a+(1).*", "in", ["in/a+(1).csv"], ["in/aa1.csv"]),
    ],
)
def test_a_pattern_matches_whole_keys(text, folder, matched, others):
    pattern = key_pattern(text)
    assert pattern is not None and pattern.folder == folder
    assert [key for key in matched + others if pattern.matches(key)] == matched


def test_brackets_may_be_plain_characters():
    assert key_pattern("in/a[1].csv", brackets=False) is None
    pattern = key_pattern("in/a[1]*", brackets=False)
    assert pattern is not None and pattern.matches("in/a[1].csv") and not pattern.matches("in/a1.csv")
