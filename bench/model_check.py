"""`python -m bench.model_check`: the model of `tests.simulation.many_nodes` beside a real run at small size.

Executions of three steps run one after the other on one server with two workers and Postgres. Requests are counted by
the server's metrics, appends by the rows of the log. Prints both, and exits with 1 if one differs by more than 20 %.
"""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import asyncpg

from bench.server_workloads import ApiClient, ServerProcesses
from bench.workloads import chain
from devcluster import services
from tests.simulation.many_nodes import Simulation, Size

TOLERANCE = 0.2
EXECUTIONS = 100
ROUTES = ("/api/execute", "/api/work/claim", "/api/work/report")
_REQUESTS = re.compile(r'noetl_http_requests_total\{method="POST",route="([^"]+)",status="\d+"\} (\d+)')


async def real(folder: Path, executions: int) -> dict[str, float]:
    """Messages, appends and bytes of the log for each execution of a real run."""
    async with AsyncExitStack() as stack:
        postgres = stack.enter_context(services.Postgres(str(folder / "pg")))
        processes = stack.enter_context(ServerProcesses(folder, 1, 2, postgres.dsn(), None))
        headers = {"Authorization": f"Bearer {processes.token}"}
        session = await stack.enter_async_context(aiohttp.ClientSession(headers=headers))
        client = ApiClient(session, processes.url)
        database = await asyncpg.connect(postgres.dsn())
        await client.many(chain(3, "noop"), 10, in_flight=1)  # warm up

        async def counted() -> tuple[int, int, int]:
            async with session.get(f"{processes.url}/metrics") as response:
                found = _REQUESTS.findall(await response.text())
            rows = await database.fetchrow("SELECT count(*), sum(octet_length(data)) FROM noetl_log")
            return sum(int(count) for route, count in found if route in ROUTES), rows[0], rows[1]

        before = await counted()
        await client.many(chain(3, "noop"), executions, in_flight=1)
        after = await counted()
        await database.close()
    requests, appends, size = ((b - a) / executions for a, b in zip(before, after, strict=True))
    return {"messages": 2 * requests, "appends": appends, "bytes": size}


def modelled() -> dict[str, float]:
    """The same of the model."""
    size = Size(2, 1, 2000, slots=256, task_seconds=0.001, load=0.0005, killed_servers=0, cut_off_workers=0)
    found = Simulation(size).run()
    return {"messages": found.messages, "appends": found.appends, "bytes": found.bytes}


def main() -> int:
    """The command."""
    with tempfile.TemporaryDirectory(prefix="bench-", dir=".") as folder:
        measured = asyncio.run(real(Path(folder).resolve(), EXECUTIONS))
    model = modelled()
    wrong = 0
    for name, value in measured.items():
        differs = abs(model[name] - value) / value
        wrong += differs > TOLERANCE
        print(
            f"{name:10} per execution: real {value:10.2f}  model {model[name]:10.2f}  difference {100 * differs:5.1f} %"
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
