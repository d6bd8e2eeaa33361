"""A process's number is its own while it lives, and anybody's when it is dead."""

import subprocess
import sys

import pytest

from noetl.core.model.ids import COUNTER_BITS
from noetl.errors import StoreUnavailable
from noetl.storage.sqlite.process_locks import ProcessLocks

HOLDER = """
import sys, time
from noetl.storage.sqlite.process_locks import ProcessLocks
print(ProcessLocks(sys.argv[1]).take(7), flush=True)
time.sleep(60)
"""


def an_id(process):
    return str((123456789 << 22) | (process << COUNTER_BITS) | 5)


def test_a_number_is_held_by_one_process_until_it_dies(tmp_path):
    folder = str(tmp_path / "owners")
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, folder], stdout=subprocess.PIPE, text=True)
    with holder:
        assert holder.stdout.readline() == "True\n"
        owners = ProcessLocks(folder)
        assert not owners.take(7)
        assert owners.take(8) and owners.take(8)
        assert owners.orphans([an_id(7), an_id(8), an_id(9)]) == [an_id(8), an_id(9)]
        holder.kill()
        holder.wait()
        assert owners.orphans([an_id(7)]) == [an_id(7)]
    other = ProcessLocks(folder)
    assert not other.take(7) and not other.take(9)
    owners.close()
    assert other.take(7)
    other.close()
    assert list((tmp_path / "owners").iterdir()) == []


def test_claimed_numbers_differ(tmp_path):
    processes = [ProcessLocks(str(tmp_path)) for _ in range(50)]
    assert len({owners.claim() for owners in processes}) == 50
    for owners in processes:
        owners.close()


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable, match="cannot write"):
        ProcessLocks(str(tmp_path / "file" / "owners")).claim()
