"""Everything that engine and pipeline decide in their own tests, compared with stored logs.

A test asserts what it is about; the log of its decisions has the rest: every event, effect, reply, reason to wait, tool
call and position. `python -m tests.core.decided_logs` runs the tests and writes the logs again after an intended change,
and prints the first difference of each test for the review. A new test has no log until then.
"""

from __future__ import annotations

import lzma
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.stored_logs import difference, plain, write

STORED = Path(__file__).parent / "decided.json.xz"
FOLDERS = ("tests/core/engine", "tests/core/pipeline")
# These have stored logs of their own, many random executions, or executions that they share.
OTHERS = (
    "test_engine_logs.py",
    "test_generated_executions.py",
    "test_pipeline_logs.py",
    "test_engine_random.py",
    "test_engine_docs.py",
)
MOST = 200_000  # characters of a log; that of a test of large data or many steps is longer, and is not stored

collected: dict[str, list[Any]] | None = None  # while the logs are written


@cache
def stored_logs() -> dict[str, msgspec.Raw]:
    """The stored logs by the name of their test."""
    return msgspec.json.decode(lzma.decompress(STORED.read_bytes()), type=dict[str, msgspec.Raw])


def compared(item: pytest.Item) -> Iterator[None]:
    """Note the decisions during a test, and compare them with the stored ones."""
    name = item.nodeid
    random = hasattr(getattr(item, "obj", None), "hypothesis")
    if random or item.path.name in OTHERS or (collected is None and name not in stored_logs()):
        yield
        return
    from engine_harness import Harness  # pytest adds its folder to the path
    from pipeline_harness import PipelineRun

    notes: list[Any] = []
    Harness.notes = PipelineRun.notes = notes
    try:
        yield
    finally:
        Harness.notes = PipelineRun.notes = None
    found = plain(msgspec.to_builtins(notes, str_keys=True, enc_hook=str))
    if collected is None:
        changed = difference(found, msgspec.json.decode(stored_logs()[name]))
        assert changed is None, f"{changed}\nafter an intended change: python -m tests.core.decided_logs"
    elif found and len(msgspec.json.encode(found)) < MOST:
        collected[name] = found


def main() -> int:
    """Run the tests and write the logs."""
    from tests.core import decided_logs as module  # the one that the tests import

    module.collected = {}
    code = pytest.main([*FOLDERS, "-q", "-p", "no:cacheprovider"])
    if code == pytest.ExitCode.OK:
        write(STORED, module.collected)
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
