"""Playbooks that say in their first lines what running them must give.

`#? key: value` lines are YAML: `payload`, `status`, `output`, `ctx`, `error` (subsets of the run's
document), `scheduled` (steps in order), `runs` (per step), `counts` (events by name), `steps`
(subsets of rows), `error_mentions`, `event_bytes_below`, `needs: api`.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import yaml

from noetl.core.model.events import Recorded, StepScheduled, encode_body

FOLDER = Path(__file__).parent.parent / "playbooks"
FILES = sorted(FOLDER.glob("*.yaml"))


def expectation(file: Path) -> dict[str, Any]:
    """What a playbook says of itself."""
    lines = [line[2:].strip() for line in file.read_text().splitlines() if line.startswith("#?")]
    return yaml.safe_load("\n".join(lines))


def check(file: Path, document: dict[str, Any], events: list[Recorded]) -> None:
    """Hold a run's document and log to what its playbook says."""
    expected = expectation(file)
    assert document["status"] == expected["status"], document["error"]
    for key in ("output", "ctx", "error"):
        if key in expected:
            assert_part(expected[key], document[key], key)
    names = Counter(each.body.NAME for each in events)
    for name, count in expected.get("counts", {}).items():
        assert names[name] == count, f"{name}: {names[name]} times, expected {count}"
    scheduled = [each.body.step for each in events if isinstance(each.body, StepScheduled)]
    if "scheduled" in expected:
        assert scheduled == expected["scheduled"]
    if "runs" in expected:
        assert dict(Counter(scheduled)) == expected["runs"]
    rows = {row["step"]: row for row in document["steps"]}
    for step, part in expected.get("steps", {}).items():
        assert_part(part, rows[step], step)
    for text in expected.get("error_mentions", ()):
        assert text in document["error"]["message"]
    if "event_bytes_below" in expected:
        assert max(len(encode_body(each.body)) for each in events) < expected["event_bytes_below"]
    assert [each.seq for each in events] == list(range(1, len(events) + 1))
    assert names["workflow.finished"] == names["playbook.processed"] == 1
    assert events[-1].body.NAME == "playbook.processed"


def assert_part(expected: Any, actual: Any, where: str) -> None:
    """Mappings may have more keys than expected; everything else must be equal."""
    if isinstance(expected, dict):
        assert isinstance(actual, dict), f"{where} is {actual!r}"
        for key, value in expected.items():
            assert key in actual, f"{where} has no {key}: {actual!r}"
            assert_part(value, actual[key], f"{where}.{key}")
    else:
        assert actual == expected, f"{where}: {actual!r} is not {expected!r}"


def as_document(result: Any) -> dict[str, Any]:
    """A run's result as plain data."""
    return msgspec.to_builtins(result)
