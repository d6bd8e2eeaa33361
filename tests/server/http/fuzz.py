"""`make fuzz`: sends generated requests to a new server for ten minutes."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.server.http.serving import Cluster
from tests.server.http.test_fuzz import fuzz

OPTIONS = (
    "--max-examples", "100", "--max-time", "600", "--continue-on-failure",
    "--exclude-path", "/api/notifications/{name}/test",
)  # fmt: skip


def main(*options: str) -> int:
    """Fuzz until all cases are tried or the time limit is reached, and print the findings.

    Left out: the test of a notification, whose response is 502 if its receiver fails."""
    with tempfile.TemporaryDirectory() as home:
        cluster = Cluster(Path(home))
        try:
            cluster.start_server()
            cluster.start_worker()
            found = fuzz(cluster, *(options or OPTIONS))
            print(found.stdout + found.stderr)
            return found.returncode
        finally:
            cluster.stop()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
