"""Quotas of the installation: the token buckets that runs of all executions and servers share.

Calls for one key that arrive together are one transaction of the store, so a large parallel loop costs a few of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from noetl.core.model.quotas.token_bucket import Bucket, QuotaCall, QuotaReply, apply
from noetl.runtime.clock import Clock
from noetl.server.lifecycle.background import BackgroundTasks
from noetl.storage.ports.quotas import QuotaStore

DROP_SECONDS = 3600.0  # between deletions of idle buckets

Call = tuple[QuotaCall, "asyncio.Future[QuotaReply]"]


class Quotas:
    """Applies calls to buckets; the store is opened at the first one."""

    def __init__(self, open_store: Callable[[], QuotaStore], clock: Clock, background: BackgroundTasks) -> None:
        self._open = open_store
        self._store: QuotaStore | None = None
        self._clock = clock
        self._background = background
        self._waiting: dict[str, list[Call]] = {}  # calls by key; a key is here while it is worked on
        self._dropped_at = clock.now()

    @property
    def used(self) -> bool:
        """Whether runs have taken tokens from this process."""
        return self._store is not None

    async def call(self, call: QuotaCall) -> QuotaReply:
        """Take a token, pause a bucket or return a turn."""
        reply: asyncio.Future[QuotaReply] = asyncio.get_running_loop().create_future()
        key = call.demand.key
        waiting = self._waiting.get(key)
        if waiting is None:
            self._waiting[key] = [(call, reply)]
            self._background.run_until_done(f"quota {key}", lambda: self._work(key))
        else:
            waiting.append((call, reply))
        return await reply

    async def _work(self, key: str) -> None:
        """Apply the calls of a key until none is left."""
        if self._store is None:
            self._store = self._open()
        while calls := self._waiting[key]:
            self._waiting[key] = []
            try:
                replies = await self._store.update(key, self._clock.now(), lambda *at, calls=calls: _all(calls, *at))
            except Exception as problem:  # noqa: BLE001 - every caller gets it
                _reject(calls, problem)
                continue
            for (_, reply), answer in zip(calls, replies, strict=True):
                if not reply.done():
                    reply.set_result(answer)
        del self._waiting[key]
        now = self._clock.now()
        if now - self._dropped_at > DROP_SECONDS:
            self._dropped_at = now
            # Not here: if the store is unreachable, it is retried, and the calls of the key must not be.
            store = self._store
            self._background.run_until_done("deletion of idle quotas", lambda: store.drop_idle(now - DROP_SECONDS))


def _all(calls: Sequence[Call], bucket: Bucket, now: float) -> tuple[Bucket, list[QuotaReply]]:
    replies = []
    for call, _ in calls:
        bucket, reply = apply(bucket, call, now)
        replies.append(reply)
    return bucket, replies


def _reject(calls: Sequence[Call], problem: BaseException) -> None:
    for _, reply in calls:
        if not reply.done():
            reply.set_exception(problem)
