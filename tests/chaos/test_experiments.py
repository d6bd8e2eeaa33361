"""Small versions of the experiments of `make chaos`, and tests of their checks."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from chaos.access import internal_urls, run_cases
from chaos.cluster import running_cluster
from chaos.findings import Finding, merge_findings, render_page
from chaos.flush import check_calls
from chaos.once import check, counting
from chaos.poison import poison_playbooks
from chaos.sagas import BOOKED, check_bookings, kill_sagas
from chaos.transfers import kill_loads
from chaos.zombies import experiment as zombies

WRITE = '7 pwrite64(4</h/noetl.db-wal>, "\\0", 4096, 32) = 4096\n'
FLUSH = "7 fdatasync(4</h/noetl.db-wal>) = 0\n"
AHEAD = '7 pwrite64(8</h/noetl.db-wal>, "\\0\\0\\0\\0"..., 262144, 4152) = 262144\n'
SEND = '9 sendto(6<socket:[1]>, "HTTP/1.1 202 Accepted\\r\\n", 300, 0, NULL, 0) = 300\n'


def test_acknowledgements_after_the_flush_are_not_reported():
    assert check_calls([WRITE, FLUSH, SEND, WRITE, WRITE, FLUSH, SEND]) == (2, 0, 2)
    assert check_calls([WRITE, FLUSH, AHEAD, SEND]) == (1, 0, 1)
    begun = "7 fdatasync(4</h/noetl.db-wal> <unfinished ...>\n"
    assert check_calls([WRITE, begun, "7 <... fdatasync resumed>) = 0\n", SEND]) == (1, 0, 1)


@pytest.mark.parametrize(
    "calls",
    [
        [WRITE, SEND, FLUSH],
        [WRITE, FLUSH, WRITE, SEND],
        [SEND],
        [AHEAD, FLUSH, SEND],
        [WRITE, AHEAD, SEND, FLUSH],
        [WRITE, "7 fdatasync(4</h/noetl.db-wal> <unfinished ...>\n", SEND, "7 <... fdatasync resumed>) = 0\n"],
        [WRITE, "7 fdatasync(5</h/noetl.db>) = 0\n", SEND],
    ],
)
def test_an_acknowledgement_before_the_flush_is_reported(calls: list[str]):
    acknowledged, early, _ = check_calls(calls)
    assert (acknowledged, early) == (1, 1)


def test_a_run_of_some_experiments_keeps_the_findings_of_the_others(tmp_path: Path):
    file = tmp_path / "reliability.json"
    merge_findings(file, [Finding("kills", "G2", "t", "d", {"a": "1"}), Finding("flush", "G3", "t", "d", {"b": "2"})])
    found = merge_findings(file, [Finding("kills", "G2", "t", "d", {"a": "3"}, violations=["x was lost"])])
    text = render_page(found, ["flush", "kills"])
    assert text.index("## flush") < text.index("## kills")
    assert "| a | 3 |" in text
    assert "| a | 1 |" not in text
    assert "x was lost" in text
    assert "| [kills](#kills) (G2) | t | a: 3 | **violated** |" in text


BOOKINGS = [(0, what, "do") for what in BOOKED] + [(0, what, "undo") for what in reversed(BOOKED)]


def test_bookings_that_are_cancelled_in_reverse_order_are_not_reported():
    assert check_bookings(BOOKINGS, 1) == []


@pytest.mark.parametrize(
    "rows",
    [BOOKINGS[:-1], [*BOOKINGS, BOOKINGS[-1]], [*BOOKINGS[:5], *reversed(BOOKINGS[5:])], BOOKINGS[1:]],
    ids=["forgotten", "repeated", "misordered", "not-booked"],
)
def test_a_wrong_cancellation_is_reported(rows):
    assert check_bookings(rows, 1) != []


@pytest.mark.timeout(240)
def test_sagas_are_undone_in_order_while_processes_are_killed():
    with running_cluster(workers=2, NOETL_SERVER_LEASE_SECONDS="3", NOETL_SLOTS="8") as cluster:
        done = kill_sagas(cluster, executions=8, kills=4, within=120)
    assert done.report.violations == []
    assert done.report.outcomes["failed"] == 8
    assert done.total == 4


@pytest.mark.timeout(240)
def test_reports_of_a_resumed_worker_are_rejected():
    found = zombies(quick=True)
    assert found.violations == []
    assert int(found.figures["runs of suspended workers"]) >= 16


def test_every_route_enforces_its_role_in_every_spelling(tmp_path: Path):
    count, unexpected = asyncio.run(run_cases(tmp_path))
    assert unexpected == []
    assert count["routes"] > 3_000
    assert count["hosts and origins"] >= 40


def test_there_are_at_least_sixty_poison_playbooks_and_internal_urls():
    assert len(poison_playbooks()) >= 60
    assert len(set(internal_urls(80))) >= 60


@pytest.mark.parametrize("load", [("postgres", "duckdb", "append"), ("http", "postgres", "append")])
def test_killed_loads_end_with_the_rows_of_the_source(load: tuple[str, str, str], database: str, tmp_path: Path):
    assert kill_loads(load, database, tmp_path, 3, seed=5)["killed"] >= 1


@pytest.mark.parametrize(
    ("lines", "violations"),
    [
        (["7 once.sh 0 1", "7 once.sh 1 1", "7 again.sh 0 1", "7 again.sh 0 2"], 0),
        (["7 again.sh 0 1", "7 again.sh 0 1"], 1),  # one attempt, two effects
        (["7 once.web 0 1", "7 once.web 0 2"], 1),  # at most once, in two attempts
        (["7 once.py 0 1", "7 once.py 0 1"], 2),  # both
    ],
)
def test_an_effect_that_occurs_twice_is_reported(tmp_path: Path, lines: list[str], violations: int):
    with counting() as effects:
        effects.file.write_text("\n".join(lines) + "\n")
        found = check(f"sqlite://{tmp_path}/noetl.db", effects, {})
        lost = check(f"sqlite://{tmp_path}/noetl.db", effects, {"1": 7})
    assert len(found.violations) == violations and found.effects == len(lines)
    assert lost.violations[-1] == "execution 1 was acknowledged but does not exist"
