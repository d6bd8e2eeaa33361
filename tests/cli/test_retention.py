"""`noetl retention` and `noetl doctor --verify`, on a store with executions in it."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from noetl.embedded import open_local

LARGE = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: large}
workflow:
  - step: start
    tool: {kind: python, code: "result = 'x' * 200_000"}
"""


@pytest.fixture
def home(folder: Path) -> Path:
    """A data folder with three executions in it."""
    home = folder.parent / "home"

    async def fill() -> None:
        async with await open_local(home=home) as engine:
            for _ in range(3):
                assert (await engine.run(LARGE)).status == "success"

    asyncio.run(fill())
    return home


def stored(home: Path) -> int:
    return sum(path.is_file() for path in (home / "results").rglob("*"))


def test_old_executions_are_deleted_with_their_results(home: Path, noetl):
    assert stored(home) >= 3
    assert noetl("retention", "--older-than", "1d", "--json").json["executions"] == 0
    assert "3 executions would be deleted" in noetl("retention", "--older-than", "0.001s", "--dry-run").out
    assert len(noetl("executions", "--json").json) == 3
    answer = noetl("retention", "--older-than", "0.001s", "--json")
    assert (answer.code, answer.json) == (0, {"executions": 3, "partitions": 0, "forgotten": True})
    assert noetl("executions", "--json").json == []
    assert stored(home) == 0


def test_without_an_age_nothing_is_deleted(home: Path, noetl):
    assert noetl("retention").code == 2
    assert noetl("retention", "--older-than", "soon").code == 2
    assert len(noetl("executions", "--json").json) == 3


def test_doctor_verify_reads_every_log(home: Path, noetl):
    answer = noetl("doctor", "--verify", "--json")
    (found,) = [one for one in answer.json if one["check"] == "checksums"]
    assert (answer.code, found["status"]) == (0, "ok")
    assert "of 3 executions" in found["detail"]
    with closing(sqlite3.connect(home / "noetl.db")) as connection, connection:
        connection.execute("UPDATE log SET data = replace(data, 'success', 'succesS') WHERE place = 2")
        connection.execute("UPDATE executions SET status = 'failed' WHERE id = (SELECT max(id) FROM executions)")
    answer = noetl("doctor", "--verify", "--json")
    assert answer.code == 1
    assert any("damaged" in one["detail"] for one in answer.json if one["check"] == "checksums")


def test_a_row_that_differs_from_its_log_is_found(home: Path, noetl):
    from noetl.storage.events.event_rows import checksum

    with closing(sqlite3.connect(home / "noetl.db")) as connection, connection:
        number, seq, data = connection.execute("SELECT id, seq, data FROM executions ORDER BY id LIMIT 1").fetchone()
        wrong = data.replace(b'"success"', b'"failed"')
        assert wrong != data
        connection.execute(
            "UPDATE executions SET data = ?, crc = ? WHERE id = ?", (wrong, checksum(number, seq, wrong), number)
        )
    answer = noetl("doctor", "--verify", "--json")
    assert answer.code == 1
    assert any("its summary does not match its log" in one["detail"] for one in answer.json)
