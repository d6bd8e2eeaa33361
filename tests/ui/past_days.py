"""Adds executions of past days and their load to the database of a server, for pictures: `python -m tests.ui.past_days FILE`.

The executions are deleted at once, as retention does it, so that only their counts are kept.
"""

from __future__ import annotations

import asyncio
import math
import sys
import time

from noetl.core.model.events import ExecutionRequested
from noetl.core.model.ids import number_at
from noetl.storage.factory import open_load_samples, open_stores
from noetl.storage.ports.load_samples import StoredLoad
from tests.conformance.event_store import make_append

DAY = 86_400


async def fill(file: str, path: str) -> None:
    events, _ = open_stores(f"sqlite:///{file}")
    samples = open_load_samples(events)
    now = time.time()
    for day in range(1, 30):
        ids = []
        for n in range(18 + 7 * day % 23):
            started = now - day * DAY + 37 * n
            ids.append(str(number_at(started)))
            failed = n % 11 == day % 7
            await events.append(
                make_append(
                    ids[-1],
                    0,
                    ExecutionRequested(playbook="d", path=path),
                    status="failed" if failed else "success",
                    path=path,
                    started_at=started,
                    ended_at=started + 20 + n % 13,
                )
            )
        await events.drop(ids)
    for quarter in range(7 * 96, 1, -1):
        at = now - 900 * quarter
        busy = max(0.0, math.sin(2 * math.pi * at / DAY))
        await samples.add(
            StoredLoad(
                at=at,
                server="127.0.0.1:8080",
                queue_depth=int(40 * busy**3),
                oldest_wait_s=busy,
                workers=2 + (busy > 0.5),
                slots=16 + 8 * (busy > 0.5),
                leases=int(14 * busy),
                ended=int(60 * busy),
                failed=int(2 * busy),
            )
        )
    await events.close()


if __name__ == "__main__":
    asyncio.run(fill(sys.argv[1], sys.argv[2]))
