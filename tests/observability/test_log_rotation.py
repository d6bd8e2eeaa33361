"""The log file of a background process is rotated in place, and everything written to standard error stays in it."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import logging, sys
from pathlib import Path
from noetl.observability import logging as logs
from noetl.observability.log_rotation import RotatingStreamHandler, is_file
file = Path(sys.argv[1])
assert is_file(sys.stderr, file)
assert not is_file(sys.stdout, file)
logs.configure("text", handler=RotatingStreamHandler(sys.stderr, file, 20_000, 3))
for number in range(2_000):
    logging.getLogger("noetl.test").info("line %d", number)
print("the end", file=sys.stderr)
"""


def test_a_full_file_is_rotated_and_old_ones_are_dropped(tmp_path):
    file = tmp_path / "server.log"
    with file.open("ab") as output:
        subprocess.run([sys.executable, "-c", SCRIPT, str(file)], stderr=output, check=True)
    names = sorted(each.name for each in tmp_path.iterdir())
    assert names == ["server.log", "server.log.1", "server.log.2", "server.log.3"]
    assert all(each.stat().st_size < 30_000 for each in tmp_path.iterdir())
    text = "".join(
        (tmp_path / name).read_text() for name in ("server.log.3", "server.log.2", "server.log.1", "server.log")
    )
    numbers = [int(line.rpartition(" ")[2]) for line in text.splitlines() if "line" in line]
    assert numbers == list(range(numbers[0], 2_000)), "lines were lost or are out of order"
    assert file.read_text().endswith("the end\n")
