"""The page of the statements of the seed documents, generated from the data that the tests check."""

from __future__ import annotations

from pathlib import Path

import yaml

SEED_AUDIT = Path(__file__).parents[2] / "tests" / "acceptance" / "seed_audit.yml"
_VERDICTS = {"works": "works", "differs": "differs by decision"}
_HEAD = """# Statements of the seed documents

The language was described by five documents (000 to 004). This page lists their normative statements and examples, and
says for each whether it works as written, differs by decision, or is not supported yet. The proof is a case of
`tests/acceptance/audit_cases.yml` (a playbook with its expected result) or another test;
`tests/acceptance/test_seed_audit.py` runs the cases and checks that every proof exists. Sections with `b` are the
second half of 004, whose numbers repeat.

"""


def seed_audit_page() -> str:
    """The page as Markdown."""
    rows = yaml.safe_load(SEED_AUDIT.read_text("utf-8"))
    counts = {verdict: sum(row["verdict"] == verdict for row in rows) for verdict in _VERDICTS}
    total = ", ".join(f"{counts[verdict]} {title}" for verdict, title in _VERDICTS.items())
    lines = [f"{len(rows)} statements: {total}.", "", "| # | document | section | statement | verdict | proof |"]
    lines.append("|---|---|---|---|---|---|")
    for row in rows:
        verdict = _VERDICTS[row["verdict"]] + (f": {row['because']}" if row.get("because") else "")
        proof = " ".join(f"`{each}`" for each in row["proof"])
        cells = (str(row["id"]), row["document"], row["section"], row["statement"], verdict, proof)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return _HEAD + "\n".join(lines) + "\n"
