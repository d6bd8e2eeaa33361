"""Class "parsers": malformed input gives the errors of its parser and nothing else; dependencies are listed."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from pathlib import Path

import pytest

import noetl
from noetl.connections.address_gate import AddressDenied
from noetl.connections.duckdb_gate import check_statements
from noetl.core.model.ids import number_at
from noetl.errors import RequestRefused
from noetl.server.scheduling.webhooks import payload_of
from tests.security.fuzz_parsers import TARGETS, fuzz

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", TARGETS)
def test_parsers_refuse_malformed_input_in_words(name):
    fuzz(name, 400)


def test_the_sbom_lists_every_locked_dependency():
    spec = importlib.util.spec_from_file_location("sbom", ROOT / "deploy" / "sbom.py")
    assert spec is not None and spec.loader is not None
    sbom = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sbom)
    lock = (ROOT / "requirements.lock").read_text()
    made = sbom.document(lock)
    assert made["bomFormat"] == "CycloneDX"
    assert len(made["components"]) == sum("==" in line and not line.startswith(" ") for line in lock.splitlines())
    assert all(each["hashes"] and each["purl"].startswith("pkg:pypi/") for each in made["components"])


BAD_ADDRESSES = ["http://[", "s3://[x/k", "file://[x", "nats://[::1", "http://\u2100/"]


@pytest.mark.parametrize("address", BAD_ADDRESSES)
@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("python", {"script": {"uri": "ADDRESS"}}),
        ("resolve", {"uri": "ADDRESS"}),
        ("object", {"action": "get", "uri": "ADDRESS"}),
        ("duckdb", {"command": "select 1", "tables": {"t": "ADDRESS"}}),
        ("transfer", {"source": {"kind": "object", "uri": "ADDRESS", "format": "csv"}, "targets": [{"kind": "object", "uri": "x.csv"}]}),
        ("transfer", {"source": {"kind": "duckdb", "query": "select 1"}, "targets": [{"kind": "object", "uri": "ADDRESS"}]}),
    ],
    ids=str,
)  # fmt: skip
def test_malformed_addresses_are_errors_of_their_task(kind, fields, address, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = json.loads(json.dumps(fields).replace("ADDRESS", "{{ workload.x }}"))
    playbook = {
        "apiVersion": "noetl.io/v2", "kind": "Playbook", "metadata": {"name": "reads"}, "workload": {"x": address},
        "workflow": [{"step": "start", "tool": {"kind": kind, **given}}],
    }  # fmt: skip
    result = noetl.run(json.dumps(playbook))
    assert result.status == "failed"
    assert result.error["kind"] != "unknown" and "ValueError" not in result.error["message"], result.error


@pytest.mark.parametrize(
    "text", ["select * from 's3://[b/k'", "COPY t TO 'http://[::1/x'", "ATTACH 'postgres://[' AS a"]
)
def test_the_address_gate_refuses_addresses_that_it_cannot_read(text):
    with pytest.raises(AddressDenied):
        asyncio.run(check_statements([(text, None)], lambda address: True))


def test_a_form_with_too_many_fields_is_refused():
    with pytest.raises(RequestRefused, match="more than 1,000 fields"):
        payload_of(b"a&" * 1500, "application/x-www-form-urlencoded")


def test_an_instant_far_away_is_a_number_that_databases_store():
    for at in (-1e12, 0.0, 4e10, 1e15, 1e300):
        assert 0 <= number_at(at) < 2**63
