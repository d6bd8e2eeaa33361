"""Caches of a worker: compiled playbooks by digest, scopes that the runs of a step share, and secrets.

Everything can be fetched again, so every cache is bounded and evicts the least recently used entry.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

import msgspec

from noetl.core.model.playbook import KeychainEntry, Playbook
from noetl.core.model.tool import ToolSpec
from noetl.core.model.work import RunContext
from noetl.core.pipeline.program import Programs
from noetl.core.pipeline.scopes import SharedScope
from noetl.errors import SecretUnavailable
from noetl.runtime.clock import Clock
from noetl.runtime.masking import Masker
from noetl.storage.ports.work_link import WorkLink
from noetl.worker.bundles import BundleFolders

MAX_PLAYBOOKS = 128
MAX_CONTEXTS = 256
MAX_EXECUTIONS = 1024
MAX_HYDRATED = 256 << 20
_INLINE_KINDS = ("static", "bearer", "oauth2", "oauth")
SECRET_SECONDS = 20.0  # that a value is reused; the keychain renews tokens
T = TypeVar("T")


@cache
def _decoder() -> msgspec.json.Decoder[Playbook]:
    """Created lazily, because analysing the model takes a while."""
    return msgspec.json.Decoder(Playbook)


class Secrets:
    """The keychain values of one execution: fetched on demand, held in memory only, all masked."""

    def __init__(self, link: WorkLink, execution_id: str, clock: Clock) -> None:
        self.masker = Masker()
        self._link = link
        self._execution_id = execution_id
        self._clock = clock
        self._values: dict[str, tuple[float, Any]] = {}
        self.expiring: frozenset[str] = frozenset()  # names of tokens, which are fetched for every use
        self.inline: frozenset[str] = frozenset()  # names of entries whose values the playbook itself gives

    async def get(self, names: Sequence[str]) -> dict[str, Any]:
        """The values of these names; SecretUnavailable lists the missing ones."""
        now = self._clock.monotonic()
        missing = [name for name in names if name not in self._values or self._values[name][0] <= now]
        if missing:
            fetched = await self._link.secrets(self._execution_id, missing)
            absent = [name for name in missing if name not in fetched]
            if absent:
                raise SecretUnavailable(dict.fromkeys(absent, "the server did not return it"))
            self.masker.add(*fetched.values())
            for name, value in fetched.items():
                self._values[name] = (now if name in self.expiring else now + SECRET_SECONDS, value)
        return {name: self._values[name][1] for name in names}

    def is_stored(self, text: Any) -> bool:
        """Whether a fetched value that the playbook does not give itself is this text, or has it as a field."""
        return any(
            text == value or (isinstance(value, Mapping) and text in value.values())
            for name, (_, value) in self._values.items()
            if name not in self.inline
        )


def inline_entries(entries: Iterable[KeychainEntry]) -> frozenset[str]:
    """The names of entries that contain their values or compute them, also from the workload."""
    return frozenset(entry.name for entry in entries if entry.kind in _INLINE_KINDS)


def expiring_entries(entries: Iterable[KeychainEntry]) -> frozenset[str]:
    """The names of tokens that the keychain renews, and of entries that read them."""
    found: set[str] = set()
    rest = list(entries)
    while more := [each for each in rest if each.kind in ("oauth2", "oauth") or _mentions(each.fields, found)]:
        found.update(each.name for each in more)
        rest = [each for each in rest if each.name not in found]
    return frozenset(found)


def _mentions(value: Any, names: set[str]) -> bool:
    if isinstance(value, Mapping):
        return any(_mentions(each, names) for each in value.values())
    if isinstance(value, list | tuple):
        return any(_mentions(each, names) for each in value)
    return isinstance(value, str) and any(name in value for name in names)


def _recent(entries: OrderedDict[str, T], key: str) -> T | None:
    """An entry, which becomes the most recently used one."""
    known = entries.get(key)
    if known is not None:
        entries.move_to_end(key)
    return known


class PlaybookCache:
    """Playbooks, shared scopes and secrets of the active runs."""

    def __init__(
        self, link: WorkLink, specs: Mapping[str, ToolSpec], clock: Clock, bundles: BundleFolders | None = None
    ) -> None:
        self._link = link
        self._bundles = bundles or BundleFolders()
        self._specs = specs
        self._clock = clock
        self._programs: OrderedDict[str, Programs] = OrderedDict()
        self._fetching: dict[str, asyncio.Task[Programs]] = {}
        self._shared: OrderedDict[str, SharedScope] = OrderedDict()
        self._secrets: OrderedDict[str, Secrets] = OrderedDict()

    def known_programs(self, digest: str) -> Programs | None:
        """The programs of a cached playbook."""
        return _recent(self._programs, digest)

    async def programs(self, digest: str) -> Programs:
        """The programs of a playbook; concurrent requests share one fetch."""
        known = self.known_programs(digest)
        if known is not None:
            return known
        fetching = self._fetching.get(digest)
        if fetching is None:
            fetching = self._fetching[digest] = asyncio.get_running_loop().create_task(self._fetch(digest))
            fetching.add_done_callback(lambda _: self._fetching.pop(digest, None))
        return await asyncio.shield(fetching)

    async def _fetch(self, digest: str) -> Programs:
        playbook = _decoder().decode(await self._link.playbook(digest))
        await self._bundles.prepare(self._link, playbook.file)
        programs = self._programs[digest] = Programs(playbook, self._specs)
        while len(self._programs) > MAX_PLAYBOOKS:
            self._programs.popitem(last=False)
        return programs

    def shared(self, context: RunContext, programs: Programs) -> SharedScope:
        """The scope that all runs of one step run share."""
        known = _recent(self._shared, context.id)
        if known is None:
            known = self._shared[context.id] = SharedScope(context, programs.playbook)
            while len(self._shared) > MAX_CONTEXTS:
                self._shared.popitem(last=False)
        return known

    def secrets(self, execution_id: str) -> Secrets:
        """The secrets of an execution."""
        known = _recent(self._secrets, execution_id)
        if known is None:
            known = self._secrets[execution_id] = Secrets(self._link, execution_id, self._clock)
            while len(self._secrets) > MAX_EXECUTIONS:
                self._secrets.popitem(last=False)
        return known

    def limit_hydrated(self, added: int) -> None:
        """Drop older hydrated payloads above the memory bound, after one of `added` bytes was read."""
        total = added
        for shared in reversed(self._shared.values()):
            total += shared.payload_bytes
            if total > MAX_HYDRATED:
                shared.clear()
