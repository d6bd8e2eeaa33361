"""Tokens over HTTP, and the calendar of schedules."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.http.serving import Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    try:
        cluster.start_server()
        yield cluster
    finally:
        cluster.stop()


def test_tokens_are_created_listed_and_revoked_by_an_admin(cluster: Cluster):
    status, created = cluster.ask("POST", "/api/tokens", {"name": "ann", "role": "operator"})
    assert status == 201
    assert cluster.ask("GET", "/api/session", token=created["token"])[1] == {"name": "ann", "role": "operator"}
    assert cluster.ask("GET", "/api/tokens", token=created["token"])[0] == 403
    status, listed = cluster.ask("GET", "/api/tokens")
    assert listed["items"] == [
        {"name": "admin", "role": "admin", "pools": []},
        {"name": "ann", "role": "operator", "pools": []},
    ]
    assert created["token"] not in str(listed)
    assert cluster.ask("POST", "/api/tokens", {"name": "ann", "role": "viewer"})[0] == 400
    assert cluster.ask("POST", "/api/tokens", {"name": "a b"})[0] == 422
    assert cluster.ask("POST", "/api/tokens", {"name": "w", "role": "viewer", "pools": ["gpu"]})[0] == 400
    assert cluster.ask("DELETE", "/api/tokens/ann")[0] == 204
    assert cluster.ask("GET", "/api/session", token=created["token"])[0] == 401
    assert cluster.ask("DELETE", "/api/tokens/ann")[0] == 404
    status, refused = cluster.ask("DELETE", "/api/tokens/admin")
    assert status == 409 and "only admin token" in refused["detail"]


def test_the_calendar_has_the_ticks_of_active_schedules(cluster: Cluster):
    playbook = (
        "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: a/b}\nworkflow: [{step: s, tool: {kind: noop}}]"
    )
    assert cluster.ask("POST", "/api/catalog/register", {"content": playbook})[0] == 201
    for name, cron in (("daily", "0 6 * * *"), ("often", "* * * * *"), ("off", "0 7 * * *")):
        assert cluster.ask("POST", "/api/schedules", {"path": "a/b", "cron": cron, "name": name})[0] == 201
    cluster.ask("POST", "/api/schedules/off/pause")
    entries = cluster.ask("GET", "/api/schedules/calendar?days=7")[1]["entries"]
    assert [(each["schedule"], len(each["ticks"]), each["more"]) for each in entries] == [
        ("daily", 7, False),
        ("often", 500, True),
    ]
