"""The OpenAPI document describes the bodies of triggers, notification rules and backfills."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from noetl.server.http.access import Tokens
from noetl.server.http.app import create_app
from noetl.server.http.openapi import openapi_document
from tests.jobs.conftest import JOBS


@pytest.fixture(scope="module")
def paths() -> dict[str, Any]:
    def unused() -> Any:
        raise LookupError("only the OpenAPI document is read")

    app = create_app(unused, Tokens(Path("nowhere")), readiness=unused, version="")
    found: dict[str, Any] = openapi_document(app)["paths"]
    return found


def body(paths: dict[str, Any], path: str, method: str = "put") -> Any:
    return paths[path][method]["requestBody"]["content"]["application/json"]["schema"]


TRIGGERS = "/api/triggers/{kind}/{name}"


def test_definitions_of_the_examples_fit(paths):
    found = 0
    for file in JOBS.glob("*/*.resource.yaml"):
        for document in yaml.load_all(file.read_text(), yaml.BaseLoader):
            path = "/api/notifications/{name}" if document["kind"] == "Notification" else TRIGGERS
            spec = {key: value for key, value in document["spec"].items() if key not in ("concurrency", "group")}
            problems = list(jsonschema_rs.validator_for(body(paths, path)).iter_errors(spec))
            assert problems == [], (file, problems)
            found += 1
    assert found >= 3


@pytest.mark.parametrize(
    ("path", "definition"),
    [
        (TRIGGERS, {"url": "/var/in"}),  # no path
        (TRIGGERS, {"path": "x", "url": "/var/in", "created_by": "me"}),
        (TRIGGERS, {"path": "x", "of": "y", "status": ["done"]}),
        (TRIGGERS, {"path": "x", "event": "y", "overlap": "sometimes"}),
        ("/api/notifications/{name}", {"on": ["failed"]}),
        ("/api/notifications/{name}", {"on": "failled", "to": {"kind": "http", "url": "https://x"}}),
        ("/api/notifications/{name}", {"on": "failed", "to": {"kind": "fax", "url": "https://x"}}),
    ],
)
def test_wrong_definitions_do_not_fit(paths, path, definition):
    assert not jsonschema_rs.validator_for(body(paths, path)).is_valid(definition)


def test_durations_and_single_values_fit(paths):
    triggers = jsonschema_rs.validator_for(body(paths, TRIGGERS))
    assert triggers.is_valid({"path": "x", "url": "/var/in", "poll": "5s"})
    rules = jsonschema_rs.validator_for(body(paths, "/api/notifications/{name}"))
    assert rules.is_valid({"on": "failed", "to": {"kind": "http", "url": "https://x"}, "group": "5m"})
