from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from noetl.runtime import temporary_folders
from noetl.runtime.temporary_folders import LOCK, TemporaryFolder, remove_abandoned

HOLDER = """
import pathlib, sys, time
from noetl.runtime.temporary_folders import TemporaryFolder
folder = TemporaryFolder("noetl-test-")
pathlib.Path(folder.name, "data").write_bytes(b"x" * 1000)
print(folder.name, flush=True)
time.sleep(60)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(temporary_folders._Sweep, "next_at", float("inf"))
    return tmp_path


def make_old(folder: Path) -> None:
    os.utime(folder / LOCK, (1, 1))


def test_a_folder_is_removed_at_its_end(place: Path) -> None:
    with TemporaryFolder("noetl-test-") as name:
        Path(name, "data").write_text("x")
    assert list(place.iterdir()) == []


def test_the_folders_of_killed_processes_are_removed_and_no_others(place: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(place)}
    )
    assert holder.stdout is not None
    killed = Path(holder.stdout.readline().strip())
    with TemporaryFolder("noetl-test-") as name:
        kept = {Path(name), place / "noetl-other", place / "noetl-young", place / "foreign"}
        for folder in kept - {Path(name)}:
            folder.mkdir()
        for folder in (place / "noetl-young", place / "foreign"):
            (folder / LOCK).touch()
        for folder in (killed, Path(name), place / "foreign"):
            make_old(folder)
        remove_abandoned(str(place))
        assert {*place.iterdir()} == kept | {killed}
        holder.kill()
        holder.wait()
        holder.stdout.close()
        remove_abandoned(str(place))
        assert {*place.iterdir()} == kept


def test_the_search_is_done_in_a_thread_and_not_for_every_folder(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    searched = threading.Event()

    def search(where: str) -> None:
        threads.append(threading.current_thread().name)
        searched.set()

    monkeypatch.setattr(temporary_folders, "remove_abandoned", search)
    monkeypatch.setattr(temporary_folders._Sweep, "next_at", 0.0)
    for _ in range(5):
        TemporaryFolder("noetl-test-").cleanup()
    assert searched.wait(10) and threads == ["noetl-sweep"]
