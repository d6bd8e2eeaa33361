"""Full disk: requests are rejected with an error, nothing acknowledged is lost, and freed space restores the service.

The full disk is simulated by the file size limit of the server process (RLIMIT_FSIZE): a write beyond it fails.
"""

from __future__ import annotations

import resource
import time

from chaos.findings import Finding
from chaos.flush import PLAYBOOK
from chaos.oracles import check_executions
from chaos.single_server import single_server

UNLIMITED = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


def experiment(*, quick: bool) -> Finding:
    """Fill the disk, send requests, free space, send requests again."""
    rounds = 1 if quick else 5
    accepted: list[str] = []
    refused = unexpected = 0
    recovered: list[float] = []
    with single_server(workers=1) as cluster:
        assert cluster.server is not None
        for _ in range(rounds):
            before = len(accepted)
            wal = cluster.home / "noetl.db-wal"
            size = max(wal.stat().st_size if wal.exists() else 0, (cluster.home / "noetl.db").stat().st_size)
            resource.prlimit(cluster.server.pid, resource.RLIMIT_FSIZE, (size + 64_000, resource.RLIM_INFINITY))
            rejections = 0
            for _ in range(400):
                status, document = cluster.ask("POST", "/api/execute", {"content": PLAYBOOK})
                if status == 202:
                    accepted.append(document["execution_id"])
                elif status in (503, 507) and document.get("detail"):
                    rejections += 1
                    if rejections >= 3:
                        break
                else:
                    unexpected += 1
            refused += rejections
            assert len(accepted) > before or rejections
            resource.prlimit(cluster.server.pid, resource.RLIMIT_FSIZE, UNLIMITED)
            began = time.monotonic()
            while time.monotonic() - began < 30:
                status, document = cluster.ask("POST", "/api/execute", {"content": PLAYBOOK})
                if status == 202:
                    accepted.append(document["execution_id"])
                    break
                time.sleep(0.05)
            recovered.append(time.monotonic() - began)
        unended = [each for each in accepted if not _ended(cluster, each)]
        report = check_executions(str(cluster.home / "noetl.db"), accepted)
    violations = list(report.violations) + [f"execution {each} did not end" for each in unended]
    violations += (
        [f"{unexpected} responses were neither 202 nor a problem document with status 503"] if unexpected else []
    )
    violations += ["the full disk was not detected"] if not refused else []
    return Finding(
        part="disk",
        guarantee="rule 2",
        target="A full disk: requests are rejected with an error, nothing acknowledged is lost, free space restores "
        "service",
        setup=f"One server on SQLite whose files cannot grow (RLIMIT_FSIZE); {rounds} rounds of full and free disk.",
        figures={
            "acknowledged executions in the store": f"{report.executions} of {len(accepted)}",
            "requests rejected with a problem document": str(refused),
            "requests accepted again after": f"{max(recovered):.2f} s",
            "successful executions": f"{report.outcomes['success']} of {len(accepted)}",
        },
        violations=violations,
    )


def _ended(cluster: object, execution_id: str) -> bool:
    try:
        return bool(cluster.finished(execution_id, 30))  # type: ignore[attr-defined]
    except AssertionError:
        return False
