"""The shipped alerts and dashboard use metrics that exist, and every alert has a runbook page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "observability"
RULES = yaml.safe_load((FOLDER / "noetl-alerts.yaml").read_text())["groups"][0]["rules"]
KNOWN = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/reference/metrics.md").read_text(), re.MULTILINE)) | {"up"}
LABELS = {
    name: set(re.findall(r"`(\w+)`", labels))
    for name, labels in re.findall(
        r"^\| `(\w+)` \| \w+ \| ([^|]*) \|", (ROOT / "docs/reference/metrics.md").read_text(), re.MULTILINE
    )
}


def metrics(expression: str) -> set[str]:
    found = re.findall(r"\b((?:noetl|process)_\w+|up)\b", re.sub(r'"[^"]*"', "", expression))
    return {re.sub(r"_bucket$", "", name) for name in found}


def test_every_alert_names_known_metrics_and_a_runbook():
    assert len(RULES) >= 10
    for rule in RULES:
        assert metrics(rule["expr"]) and metrics(rule["expr"]) <= KNOWN, rule["alert"]
        assert rule["labels"]["severity"] in ("critical", "warning")
        page = ROOT / "docs" / "runbooks" / f"{rule['annotations']['runbook_url'].rpartition('/')[2]}.md"
        text = page.read_text()
        assert text.startswith(f"# {rule['alert']}\n")
        assert "## What to do" in text and rule["expr"] in text
        assert rule["expr"].count("(") == rule["expr"].count(")")


def test_every_runbook_belongs_to_an_alert_and_is_listed():
    pages = {file.stem for file in (ROOT / "docs" / "runbooks").glob("*.md")} - {"index"}
    assert pages == {rule["alert"] for rule in RULES}
    index = (ROOT / "docs" / "runbooks" / "index.md").read_text()
    assert all(f"({name}.md)" in index for name in pages)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_labels_of_an_alert_exist(rule):
    used = set(re.findall(r"by \(([\w, ]+)\)", rule["expr"]))
    labels = {label.strip() for group in used for label in group.split(",")} - {"le", "instance"}
    available = {"job", "instance"}.union(*(LABELS.get(name, set()) for name in metrics(rule["expr"])))
    assert labels <= available


def test_the_dashboard_names_known_metrics():
    panels = json.loads((FOLDER / "noetl-dashboard.json").read_text())["panels"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    assert len(expressions) >= 15
    for expression in expressions:
        assert metrics(expression) and metrics(expression) <= KNOWN, expression
