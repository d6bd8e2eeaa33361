"""A disk that is full: requests are refused in words, nothing that was acknowledged is lost, and space brings it back.

The limit is the kernel's file size limit of the server process (RLIMIT_FSIZE): a write beyond it fails as on a
full disk.
"""

from __future__ import annotations

import resource
import time

from chaos.findings import Finding
from chaos.flush import PLAYBOOK
from chaos.judging import judge
from chaos.solo import solo

UNLIMITED = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


def experiment(*, quick: bool) -> Finding:
    """Fill, ask, make room, ask again."""
    rounds = 1 if quick else 5
    accepted: list[str] = []
    refused = odd = 0
    recovered: list[float] = []
    with solo(workers=1) as cluster:
        assert cluster.server is not None
        for _ in range(rounds):
            before = len(accepted)
            wal = cluster.home / "noetl.db-wal"
            size = max(wal.stat().st_size if wal.exists() else 0, (cluster.home / "noetl.db").stat().st_size)
            resource.prlimit(cluster.server.pid, resource.RLIMIT_FSIZE, (size + 64_000, resource.RLIM_INFINITY))
            said = 0
            for _ in range(400):
                status, document = cluster.ask("POST", "/api/execute", {"content": PLAYBOOK})
                if status == 202:
                    accepted.append(document["execution_id"])
                elif status in (503, 507) and document.get("detail"):
                    said += 1
                    if said >= 3:
                        break
                else:
                    odd += 1
            refused += said
            assert len(accepted) > before or said
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
        judged = judge(str(cluster.home / "noetl.db"), accepted)
    broken = list(judged.broken) + [f"execution {each} did not end" for each in unended]
    broken += (
        [f"{odd} requests were answered otherwise than with 202 or a problem document of status 503"] if odd else []
    )
    broken += ["a full disk was never noticed"] if not refused else []
    return Finding(
        part="disk",
        guarantee="rule 2",
        target="A full disk: requests are refused in words, nothing acknowledged is lost, space brings everything back",
        did=f"One server on SQLite whose files may not grow (RLIMIT_FSIZE), {rounds} times full and free again.",
        figures={
            "acknowledged and kept": f"{judged.executions} of {len(accepted)}",
            "refused with a problem document": str(refused),
            "took requests again after": f"{max(recovered):.2f} s",
            "executions that ended well": f"{judged.outcomes['success']} of {len(accepted)}",
        },
        broken=broken,
    )


def _ended(cluster: object, execution_id: str) -> bool:
    try:
        return bool(cluster.finished(execution_id, 30))  # type: ignore[attr-defined]
    except AssertionError:
        return False
