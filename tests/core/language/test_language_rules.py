"""The page of the language's rules names diagnostics and tests that exist, and every rule has one."""

from __future__ import annotations

import re
from pathlib import Path

from docs.generate.language_rules_page import language_rules_page
from noetl.core.language.diagnostic_codes import CODES

ROOT = Path(__file__).parents[3]
ERR = Path(__file__).parent / "err"
PAGE = (ROOT / "docs" / "reference" / "language-rules.md").read_text("utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| rule")]


def test_every_rule_has_a_test():
    assert len(ROWS) > 80
    assert [row for row in ROWS if "::test_" not in row and "`err/" not in row] == []


def test_the_golden_cases_on_the_page_report_the_diagnostics_of_their_rule():
    for row in ROWS:
        codes = set(re.findall(r"\[([\w-]+)\]\(diagnostics/", row))
        for case in re.findall(r"`err/([\w.-]+)`", row):
            assert codes & set(re.findall(r"\[([\w-]+)\]$", (ERR / f"{case}.out").read_text("utf-8"), re.M)), case
    assert language_rules_page() == PAGE, "run `make docs`"


def test_every_diagnostic_on_the_page_exists():
    named = re.findall(r"\[([\w-]+)\]\(diagnostics/([\w-]+)\.md\)", "\n".join(ROWS))
    assert named and all(label == file and label in CODES for label, file in named)


def test_every_test_on_the_page_exists():
    for file, name in re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", PAGE):
        text = (ROOT / file).read_text("utf-8")
        assert re.search(rf"^(?:async )?def {name}\(", text, re.M), f"{file}::{name}"


def test_every_diagnostic_of_a_rule_is_on_the_page():
    other = {"yaml", "legacy", "not", "empty", "too", "unused"}  # of the text, of dialects, of comments
    rest = {code for code in CODES if code.partition("-")[0] not in other and f"[{code}]" not in PAGE}
    assert rest == set()
