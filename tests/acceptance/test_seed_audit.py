"""Every statement of the seed documents with its verdict and its proof: a case of `audit_cases.yml` or another test.

`docs/reference/seed-audit.md` is generated from `seed_audit.yml`, which has the statements.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs.generate.seed_audit_page import SEED_AUDIT, seed_audit_page
from tests.acceptance.test_habits import check_case

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CASES: dict[str, dict[str, Any]] = yaml.load((HERE / "audit_cases.yml").read_text("utf-8"), yaml.CSafeLoader)
ROWS = yaml.load(SEED_AUDIT.read_text("utf-8"), yaml.CSafeLoader)


@pytest.mark.parametrize("name", CASES)
def test_case_of_the_audit(
    name: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check_case(name, CASES[name], tmp_path, request)


def test_every_statement_has_a_verdict_and_a_proof() -> None:
    assert [row["id"] for row in ROWS] == list(range(1, 293))
    for row in ROWS:
        assert row["verdict"] in ("works", "differs"), row
        assert row["verdict"] == "works" or row["because"], row
        assert row["proof"], row


def test_every_proof_exists() -> None:
    texts: dict[str, str] = {}
    for row in ROWS:
        for proof in row["proof"]:
            file, _, name = proof.rpartition("::")
            if not file:
                assert proof in CASES, proof
                continue
            text = texts.setdefault(file, (ROOT / file).read_text("utf-8"))
            assert re.search(rf"^\s*(?:async )?def {name}\(", text, re.M), proof


def test_every_case_proves_a_statement() -> None:
    assert set(CASES) == {proof for row in ROWS for proof in row["proof"] if "::" not in proof}


def test_the_page_is_up_to_date() -> None:
    page = ROOT / "docs" / "reference" / "seed-audit.md"
    assert page.read_text("utf-8") == seed_audit_page(), "run `make docs`"
