"""Quotas of a worker's runs: tokens from the server, and pauses that a service asks for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from noetl.core.model.outcome import Outcome
from noetl.core.model.quotas.token_bucket import MAX_PAUSE, Demand, QuotaCall, QuotaReply, Turn
from noetl.storage.ports.work_link import WorkLink
from noetl.worker.tool_call import BeforeRetry

MAX_QUOTA_SLEEP = 1.0  # seconds that a run waits on its worker, without a slot; for longer waits it is released


class WorkerQuotas:
    """Takes tokens for runs."""

    def __init__(self, link: WorkLink) -> None:
        self._link = link

    async def take(self, demand: Demand, turn: Turn | None = None) -> QuotaReply:
        """Take a token; the reply says when the run may start."""
        return await self._link.quota(QuotaCall(demand, turn))

    async def pause(self, demands: Sequence[Demand], outcome: Outcome) -> None:
        """Lower the rate if a service responded 429 with `Retry-After`."""
        answer = outcome.helpers.get("http", {})
        seconds = answer.get("retry_after")
        if outcome.error is None or answer.get("status") != 429 or not seconds:
            return
        for demand in demands:
            await self._link.quota(QuotaCall(demand, pause_s=min(float(seconds), MAX_PAUSE)))

    def before_retry(self, demands: Sequence[Demand], wait: Callable[[float], Awaitable[None]]) -> BeforeRetry:
        """What precedes a retry inside a tool: the rate is lowered if necessary, and the call takes further tokens."""

        async def again(outcome: Outcome) -> None:
            await self.pause(demands, outcome)
            for demand in demands:
                reply = await self.take(demand)
                if reply.seconds > 0:
                    await wait(reply.seconds)

        return again
