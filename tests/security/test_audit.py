"""Class "dependencies": advisories of locked dependencies are found, and an audit that could not run is no success."""

from __future__ import annotations

import importlib.util
import json
import zipfile
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "deploy" / "audit.py"
LOCK = "aiohttp==3.9.0 \\\n    --hash=sha256:" + "0" * 64 + "\nOther_Name==1.0\n"


@pytest.fixture
def audit(tmp_path):
    spec = importlib.util.spec_from_file_location("audit", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "lock").write_text(LOCK)
    return module


def advisory(name: str = "aiohttp", **affected) -> dict:
    return {"id": "TEST-1", "affected": [{"package": {"ecosystem": "PyPI", "name": name}, **affected}]}


def between(*events: dict) -> dict:
    return {"ranges": [{"type": "ECOSYSTEM", "events": list(events)}]}


@pytest.mark.parametrize(
    ("found", "applies"),
    [
        (advisory(versions=["3.9.0"]), True),
        (advisory(versions=["3.9.1"]), False),
        (advisory(**between({"introduced": "0"}, {"fixed": "3.9.2"})), True),
        (advisory(**between({"introduced": "0"}, {"fixed": "3.9.0"})), False),
        (advisory(**between({"introduced": "3.10"})), False),
        (
            advisory(
                **between({"introduced": "0"}, {"fixed": "2.0"}, {"introduced": "3.8"}, {"last_affected": "3.9.0"})
            ),
            True,
        ),
        (advisory(**between({"introduced": "0"}, {"last_affected": "3.8.9"})), False),
        (advisory("other.name", versions=["1.0"]), True),
        (advisory("unknown", versions=["1.0"]), False),
        ({**advisory(versions=["3.9.0"]), "withdrawn": "2024-01-01T00:00:00Z"}, False),
    ],
)
def test_an_advisory_applies_to_the_versions_that_it_names(audit, tmp_path, found, applies):
    (tmp_path / "export").mkdir()
    (tmp_path / "export/TEST-1.json").write_text(json.dumps(found))
    with zipfile.ZipFile(tmp_path / "export.zip", "w") as archive:
        archive.writestr("TEST-1.json", json.dumps(found))
    for export in ("export", "export.zip"):
        assert audit.main([str(tmp_path / "lock"), "--advisories", str(tmp_path / export)]) == int(applies)


def test_an_accepted_advisory_needs_a_reason_and_expires(audit, tmp_path):
    accepted = tmp_path / "accepted.json"
    accepted.write_text(json.dumps([{"id": "TEST-1", "reason": "not used", "until": "2030-01-01"}]))
    assert audit.accepted("2029-12-31", accepted) == {"TEST-1": "not used"}
    assert audit.accepted("2030-01-02", accepted) == {}
    for entry in json.loads(audit.ACCEPTED.read_text()):
        assert entry["reason"] and entry["until"]


def test_without_a_network_nothing_is_reported_as_checked(audit, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(audit, "OSV", "http://127.0.0.1:1")
    assert audit.main([str(tmp_path / "lock")]) == 3
    assert "not checked" in capsys.readouterr().err


@pytest.mark.parametrize("export", ["missing", "empty", "empty.zip", "broken.zip", "broken"])
def test_an_export_without_advisories_is_no_success(audit, tmp_path, capsys, export):
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/x.json").write_text("{")
    (tmp_path / "broken.zip").write_text("no archive")
    zipfile.ZipFile(tmp_path / "empty.zip", "w").close()
    assert audit.main([str(tmp_path / "lock"), "--advisories", str(tmp_path / export)]) == 3
    assert "not checked" in capsys.readouterr().err


def test_a_lock_file_without_dependencies_is_no_success(audit, tmp_path, capsys):
    (tmp_path / "none").write_text("# nothing\n")
    assert audit.main([str(tmp_path / "none")]) == 3
    assert "not checked" in capsys.readouterr().err
