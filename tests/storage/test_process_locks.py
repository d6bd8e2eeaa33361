"""A process number is locked while its process lives, and free afterwards."""

import subprocess
import sys

import pytest

from noetl.core.model.ids import COUNTER_BITS
from noetl.errors import StoreUnavailable
from noetl.storage.sqlite.process_locks import ProcessLocks

HOLDER = """
import sys, time
from noetl.storage.sqlite.process_locks import ProcessLocks
print(ProcessLocks(sys.argv[1]).acquire(7), flush=True)
time.sleep(60)
"""


def an_id(process):
    return str((123456789 << 22) | (process << COUNTER_BITS) | 5)


def test_a_number_is_held_by_one_process_until_it_dies(tmp_path):
    folder = str(tmp_path / "owners")
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, folder], stdout=subprocess.PIPE, text=True)
    with holder:
        assert holder.stdout.readline() == "True\n"
        locks = ProcessLocks(folder)
        assert not locks.acquire(7)
        assert locks.acquire(8) and locks.acquire(8)
        assert locks.acquire_orphans([an_id(7), an_id(8), an_id(9)]) == [an_id(8), an_id(9)]
        holder.kill()
        holder.wait()
        assert locks.acquire_orphans([an_id(7)]) == [an_id(7)]
    other = ProcessLocks(folder)
    assert not other.acquire(7) and not other.acquire(9)
    locks.close()
    assert other.acquire(7)
    other.close()
    assert list((tmp_path / "owners").iterdir()) == []


def test_claimed_numbers_differ(tmp_path):
    processes = [ProcessLocks(str(tmp_path)) for _ in range(50)]
    assert len({locks.claim() for locks in processes}) == 50
    for locks in processes:
        locks.close()


def test_a_folder_that_cannot_be_created_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable, match="cannot write"):
        ProcessLocks(str(tmp_path / "file" / "owners")).claim()
