"""Which test executes which line, recorded once, so that a mutant needs only the tests that execute its line."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import coverage
import pytest
from coverage.numbits import numbits_to_nums

from tests.mutation.mutants import Mutant

ROOT = Path(__file__).parents[2]
FOLDERS = ("noetl/core/engine", "noetl/core/pipeline", "noetl/server")
TESTS = (  # two processes take turns
    "tests/mutation/seeds.py",
    "tests/server",
    "tests/core/engine",
    "tests/worker",
    "tests/core/pipeline",
    "tests/security/test_worker_tokens.py",
    "tests/core/test_quotas.py",
    "tests/e2e",
    "tests/cli",
    "tests/acceptance",
    "tests/jobs",
    "tests/storage/test_quota_stores.py",
    "tests/storage/test_integrity.py",
    "tests/storage/test_repair.py",
    "tests/security/test_decision_defects.py",
    "tests/security/test_decision_deadline.py",
    "tests/transport/test_work_links.py",
)
STORED = ROOT / "build" / "mutation"
# A mutant exists only in its own process, so tests that start servers in other processes say nothing about it.
IMPORT = ""  # the context of lines that ran before the first test
SERVICES = {"postgres", "database", "nats_server", "s3", "bucket", "cluster"}
PROCESSES = re.compile(r"^(import subprocess|from tests.server.http.serving|from devcluster)|create_subprocess", re.M)
TIMED = ("tests/e2e/test_quotas.py",)  # measure rates, which mutants beside them change
MOST_LINES = 2048  # of a file
OPTIONS = ("-q", "--assert=plain", "--capture=sys", "--no-header", "--tb=no", "-p", "no:cacheprovider")


class Recorder:
    """Records the lines and the duration of each test that passes."""

    def __init__(self, coverage_: coverage.Coverage, database: sqlite3.Connection) -> None:
        self._coverage = coverage_
        self._database = database
        database.execute("create table if not exists tests (name text primary key, seconds real)")
        self._failed = False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._coverage.switch_context(item.nodeid)
        self._failed = False
        started = time.process_time(), time.monotonic()
        result = yield
        # Waiting costs a mutant little; the CPU time of a test is what its selection saves.
        seconds = time.process_time() - started[0] + 0.2 * (time.monotonic() - started[1])
        self._database.execute("delete from tests where name = ?", (item.nodeid,))
        if not self._failed:
            self._database.execute("insert into tests values (?, ?)", (item.nodeid, seconds))
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed |= report.outcome != "passed"


def needs_services(item: pytest.Item) -> bool:
    """Whether a test starts a database or another process, or measures time."""
    from tests.conftest import SERVICES as PATTERN

    fixtures = set(getattr(item, "fixturenames", ()))
    if item.nodeid.startswith(TIMED):
        return True
    return bool(SERVICES & fixtures or PATTERN.search(item.nodeid) or PROCESSES.search(_source(item.path)))


@cache
def _source(path: Path) -> str:
    return path.read_text()


def record(tests: Sequence[str]) -> None:
    """Record these tests; what other tests have recorded is kept."""
    STORED.mkdir(parents=True, exist_ok=True)
    jobs = [tests[::2], tests[1::2]]
    running = [
        subprocess.Popen([sys.executable, "-m", "tests.mutation.recording", f"part{number}", *part], cwd=ROOT)
        for number, part in enumerate(jobs)
        if part
    ]
    for each in running:
        each.wait()


def _record_part(name: str, tests: Sequence[str]) -> None:
    coverage_ = coverage.Coverage(
        data_file=STORED / f"{name}.coverage", config_file=False, include=[f"{ROOT}/{each}/*" for each in FOLDERS]
    )
    if (STORED / f"{name}.coverage").exists():
        coverage_.load()
    database = sqlite3.connect(STORED / f"{name}.tests", isolation_level=None)
    recorder = Recorder(coverage_, database)
    coverage_.start()
    try:
        pytest.main([*OPTIONS, *tests], plugins=[recorder, _WithoutServices()])
    finally:
        coverage_.stop()
        coverage_.save()
        database.close()


class _WithoutServices:
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if not needs_services(item)]


class Recorded:
    """What was recorded: the tests of a line, and the seconds of a test."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._databases: list[sqlite3.Connection] = []
        self._files: dict[str, dict[int, set[str]]] = {}
        self._totals: dict[str, int] = {}
        self._areas: dict[str, dict[str, int]] = {}
        for part in sorted(STORED.glob("*.tests")):
            with sqlite3.connect(part) as database:
                self.seconds |= dict(database.execute("select name, seconds from tests"))
            self._databases.append(sqlite3.connect(part.with_suffix(".coverage")))

    def tests_of(self, file: str, lines: range) -> set[str]:
        """The tests that execute one of the lines."""
        found = self._lines(file)
        return {test for line in lines if line in found for test in found[line]} - {IMPORT}

    def focus(self, file: str) -> dict[str, float]:
        """For each test the share of this file in the lines that it executes: high in tests that are about the file."""
        query = (
            "select context.context, line_bits.numbits, file.path from line_bits"
            " join context on context.id = line_bits.context_id join file on file.id = line_bits.file_id"
        )
        if not self._totals:
            for database in self._databases:
                for test, bits, _ in database.execute(query):
                    self._totals[test] = self._totals.get(test, 0) + int.from_bytes(bits).bit_count()
        here: dict[str, int] = {}
        for database in self._databases:
            for test, bits, _ in database.execute(f"{query} where file.path = ?", (str(ROOT / file),)):
                here[test] = here.get(test, 0) + int.from_bytes(bits).bit_count()
        return {test: count / self._totals[test] for test, count in here.items()}

    def lines_of(self, folder: str) -> dict[str, int]:
        """For each test the lines of the files below a folder that it executes, one bit for each."""
        if folder not in self._areas:
            lines: dict[str, int] = {}
            places: dict[str, int] = {}  # file -> its first bit
            query = (
                "select context.context, line_bits.numbits, file.path from line_bits"
                " join context on context.id = line_bits.context_id join file on file.id = line_bits.file_id"
                " where file.path like ?"
            )
            for database in self._databases:
                for test, bits, path in database.execute(query, (f"{ROOT / folder}/%",)):
                    place = places.setdefault(path, len(places) * MOST_LINES)
                    lines[test] = lines.get(test, 0) | int.from_bytes(bits, "little") << place
            self._areas[folder] = lines
        return self._areas[folder]

    def runs_at_import(self, mutant: Mutant) -> bool:
        """Whether the line runs when its module is imported, so that it has run before a fork."""
        return mutant.function is None or IMPORT in self._lines(mutant.file).get(mutant.line, ())

    def _lines(self, file: str) -> dict[int, set[str]]:
        if file not in self._files:
            lines: dict[int, set[str]] = {}
            for database in self._databases:
                rows = database.execute(
                    "select context.context, line_bits.numbits from line_bits"
                    " join context on context.id = line_bits.context_id join file on file.id = line_bits.file_id"
                    " where file.path = ?",
                    (str(ROOT / file),),
                )
                for test, bits in rows:
                    if test in self.seconds or test == IMPORT:
                        for line in numbits_to_nums(bits):
                            lines.setdefault(line, set()).add(test)
            self._files[file] = lines
        return self._files[file]


if __name__ == "__main__":
    _record_part(sys.argv[1], sys.argv[2:])
