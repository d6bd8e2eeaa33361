"""Playbooks that show single rules of loops, the keychain and reuse; the page of the language's rules names them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.acceptance.test_habits import check_case

HERE = Path(__file__).parent
CASES: dict[str, dict[str, Any]] = yaml.load((HERE / "language_cases.yml").read_text("utf-8"), yaml.CSafeLoader)


@pytest.mark.parametrize("name", CASES)
def test_the_case_of_a_rule(
    name: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check_case(name, CASES[name], tmp_path, request)


def test_the_page_of_rules_names_every_case() -> None:
    page = (HERE.parents[1] / "docs" / "reference" / "language-rules.md").read_text("utf-8")
    assert set(re.findall(r"`case/([a-z]\w+)`", page)) == set(CASES)
