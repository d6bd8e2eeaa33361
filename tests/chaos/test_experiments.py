"""The experiments of `make chaos`, small and fixed; and their judges, shown what they must not miss."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from chaos.access import inside, tried
from chaos.findings import Finding, keep, page
from chaos.flush import judge_calls
from chaos.poison import poisons
from chaos.zombies import experiment as zombies

WRITE = '7 pwrite64(4</h/noetl.db-wal>, "\\0", 4096, 32) = 4096\n'
FLUSH = "7 fdatasync(4</h/noetl.db-wal>) = 0\n"
AHEAD = '7 pwrite64(8</h/noetl.db-wal>, "\\0\\0\\0\\0"..., 262144, 4152) = 262144\n'
SEND = '9 sendto(6<socket:[1]>, "HTTP/1.1 202 Accepted\\r\\n", 300, 0, NULL, 0) = 300\n'


def test_an_acknowledgement_after_the_flush_is_fine():
    assert judge_calls([WRITE, FLUSH, SEND, WRITE, WRITE, FLUSH, SEND]) == (2, 0, 2)
    assert judge_calls([WRITE, FLUSH, AHEAD, SEND]) == (1, 0, 1)
    begun = "7 fdatasync(4</h/noetl.db-wal> <unfinished ...>\n"
    assert judge_calls([WRITE, begun, "7 <... fdatasync resumed>) = 0\n", SEND]) == (1, 0, 1)


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
def test_an_acknowledgement_before_the_flush_is_noticed(calls: list[str]):
    acknowledged, early, _ = judge_calls(calls)
    assert (acknowledged, early) == (1, 1)


def test_a_run_of_some_experiments_keeps_the_figures_of_the_others(tmp_path: Path):
    file = tmp_path / "reliability.json"
    keep(file, [Finding("kills", "G2", "t", "d", {"a": "1"}), Finding("flush", "G3", "t", "d", {"b": "2"})])
    found = keep(file, [Finding("kills", "G2", "t", "d", {"a": "3"}, broken=["x was lost"])])
    text = page(found, ["flush", "kills"])
    assert text.index("## flush") < text.index("## kills")
    assert "| a | 3 |" in text
    assert "| a | 1 |" not in text
    assert "x was lost" in text
    assert "| [kills](#kills) (G2) | t | a: 3 | **broken** |" in text


@pytest.mark.timeout(240)
def test_what_a_stopped_worker_reports_when_it_goes_on_is_not_accepted():
    found = zombies(quick=True)
    assert found.broken == []
    assert int(found.figures["runs of stopped workers"]) >= 16


def test_every_route_answers_every_role_in_every_spelling_as_its_table_says(tmp_path: Path):
    count, odd = asyncio.run(tried(tmp_path))
    assert odd == []
    assert count["routes"] > 3_000
    assert count["hosts and origins"] >= 40


def test_there_are_sixty_poisons_and_as_many_ways_inside():
    assert len(poisons()) >= 60
    assert len(set(inside(80))) >= 60
