"""Finds and compiles playbooks: from a path, a file or a digest to a compiled playbook.

A digest identifies a text *and* its file, since relative paths inside a playbook are resolved against the file.
Compilation is pure, so compiling the stored text after a restart gives the playbook that ran. The stored text
is compiled in the most permissive mode, which accepts every playbook that another mode accepts, with the same meaning.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, TypeVar

import msgspec

from noetl.core.model.bundle import PREFIX as BUNDLE
from noetl.core.model.playbook import Playbook
from noetl.core.model.tool import ToolSpec
from noetl.errors import CorruptLog, InvalidPlaybook, NotFound, unknown
from noetl.server.orchestrator.bundles import Bundles, with_profile
from noetl.storage.ports.playbooks import Origin, PlaybookStore, StoredPlaybook

if TYPE_CHECKING:
    from noetl.core.language.compile import Compilation

K = TypeVar("K")
T = TypeVar("T")

MAX_COMPILE_THREADS = 2
MAX_COMPARED_PATHS = 2_000  # for a suggestion
MAX_STORED = 10_000  # digests of texts that are known to be stored
STORED_SECONDS = 12 * 3600.0  # then a text is stored again, so that it counts as used (`lifecycle.retention`)
MAX_INLINE_CHARACTERS = 4_000  # a text of this size compiles faster than a thread starts

Files = Callable[[str, str], Awaitable[tuple[str, str] | None]]
"""(path as written, file of the caller) -> text and file; None when there is no such file."""


class Source(msgspec.Struct, frozen=True):
    """The text of a playbook, its file, and its version in the catalog."""

    text: str
    file: str = ""
    version: str | None = None


class Catalog:
    """Finds, compiles and caches playbooks."""

    def __init__(
        self,
        playbooks: PlaybookStore,
        specs: Callable[[], Mapping[str, ToolSpec]],
        files: Files | None = None,
        capacity: int = 256,
    ) -> None:
        self.playbooks = playbooks
        self.bundles = Bundles(playbooks)
        self._specs = specs
        self._files = files
        self._capacity = capacity
        self._compiled: OrderedDict[tuple[str, bool, bool], Playbook] = OrderedDict()  # digest, strict, legacy
        self._encoded: OrderedDict[str, bytes] = OrderedDict()
        self._stored: dict[str, float] = {}  # digest -> when its text was stored
        self._threads = asyncio.Semaphore(MAX_COMPILE_THREADS)
        self._lookups: dict[tuple[str, int | None], _Lookup] = {}

    # ── compilation ─────────────────────────────────────────────────────────────────────

    async def compile(self, source: Source, *, strict: bool = False, legacy: bool = False) -> Playbook:
        """The compiled playbook, cached; raises InvalidPlaybook with all diagnostics."""
        known = self._compiled.get((source_digest(source), strict, legacy))
        if known is not None:
            return known
        if len(source.text) <= MAX_INLINE_CHARACTERS:
            compilation = self.check(source, strict=strict, legacy=legacy)
        else:
            compilation = await self.run_in_thread(lambda: self.check(source, strict=strict, legacy=legacy))
        if compilation.playbook is None:
            raise InvalidPlaybook(compilation.diagnostics)
        playbook = compilation.playbook
        profile = await self.bundles.profile(source.file)
        if profile is not None:
            playbook = with_profile(playbook, profile, source.text)
        return self.add(source, playbook, strict=strict, legacy=legacy)

    def add(self, source: Source, playbook: Playbook, *, strict: bool = False, legacy: bool = False) -> Playbook:
        """Cache a compiled playbook under the digest of its source, and return it with that digest."""
        digest = source_digest(source)
        playbook = msgspec.structs.replace(playbook, digest=digest, file=source.file, shown=_relative(source.file))
        self._remember(self._compiled, (digest, strict, legacy), playbook)
        return playbook

    def check(self, source: Source, *, strict: bool = False, legacy: bool = False) -> Compilation:
        """Compile a text without caching; the result has all diagnostics."""
        from noetl.core.language.compile import compile_playbook

        return compile_playbook(source.text, file=source.file, specs=self._specs(), strict=strict, legacy=legacy)

    async def run_in_thread(self, work: Callable[[], T]) -> T:
        """Run CPU-bound work in a thread, so that it does not block the event loop."""
        async with self._threads:
            return await asyncio.to_thread(work)

    async def load(self, digest: str) -> Playbook:
        """The playbook of an execution, by its digest."""
        for mode in _MODES:
            known = self._compiled.get((digest, *mode))
            if known is not None:
                return known
        return await self.compile(await self.source(digest), legacy=True)

    async def source(self, digest: str) -> Source:
        """The stored text of a digest; CorruptLog when it is missing or damaged."""
        stored = await self.playbooks.text(digest)
        if stored is None:
            raise CorruptLog(f"the text of playbook {digest} is missing from the store")
        source = Source(*stored)
        if source_digest(source) != digest:
            raise CorruptLog(f"the text of playbook {digest} is damaged")
        return source

    async def store(self, playbook: Playbook, source: Source) -> None:
        """Store the text permanently under the digest, for `load`."""
        await self.playbooks.save_text(playbook.digest, source.text, source.file)
        if len(self._stored) >= MAX_STORED:
            self._stored.clear()
        self._stored[playbook.digest] = time.monotonic()

    def is_stored(self, playbook: Playbook) -> bool:
        """Whether this process knows that the text is stored, and that retention does not delete it soon."""
        stored = self._stored.get(playbook.digest)
        return stored is not None and time.monotonic() - stored < STORED_SECONDS

    async def encoded(self, digest: str) -> bytes:
        """The compiled playbook as JSON, for workers."""
        known = self._encoded.get(digest)
        if known is None:
            known = msgspec.json.encode(await self.load(digest))
            self._remember(self._encoded, digest, known)
        return known

    # ── lookup ──────────────────────────────────────────────────────────────────────────

    async def find(self, path: str, version: int | str | None = None, caller: str = "") -> Source:
        """Find a playbook in the catalog, then as a file relative to the caller; NotFound names the places searched."""
        stored = await self.registered(path, version)
        if stored is not None:
            return Source(stored.text, stored.file, str(stored.version))
        in_bundle = caller.startswith(BUNDLE)
        if version is None and (in_bundle or self._files is not None):
            files = self.bundles.find if in_bundle or self._files is None else self._files
            found = await files(path, caller)
            if found is not None:
                return Source(*found)
        raise await self.unknown(path, version, files=self._files is not None and version is None)

    async def unknown(self, path: str, version: int | str | None = None, *, files: bool = False) -> NotFound:
        """The error for a path or version that does not exist: similar paths, or the newest version."""
        from difflib import get_close_matches

        where = "in the catalog or as a file" if files else "in the catalog"
        newest = await self.playbooks.find(path) if version is not None else None
        if newest is not None:
            return NotFound(f"there is no version {version} of playbook {path!r}; the newest is {newest.version}")
        which = f"playbook {path!r}" + (f" version {version}" if version is not None else "")
        paths = [each.path for each in await self.playbooks.list(limit=MAX_COMPARED_PATHS)]
        close = get_close_matches(path, paths, n=1)
        advice = f"did you mean {close[0]!r}?" if close else "register it with `noetl register FILE`"
        return NotFound(f"there is no {which} {where}; {advice}")

    async def unmatched(self, pattern: str) -> str | None:
        """The warning about a pattern of paths that no registered playbook has; None if one has it."""
        paths = [each.path for each in await self.playbooks.list(limit=MAX_COMPARED_PATHS)]
        if any(fnmatchcase(path, pattern) for path in paths) or await self.playbooks.find(pattern) is not None:
            return None
        if len(paths) == MAX_COMPARED_PATHS and any(each in pattern for each in "*?["):
            return None  # not all were compared
        return str(unknown("registered playbook", pattern, paths, "nothing is received until one is registered"))

    async def registered(self, path: str, version: int | str | None = None) -> StoredPlaybook | None:
        """A version in the catalog, by default the newest; None when there is none."""
        if isinstance(version, str):
            if version in ("", "latest"):
                version = None
            elif version.isdecimal():
                version = int(version)
            else:
                return None
        lookup = self._lookups.get((path, version))
        if lookup is None:
            lookup = self._lookups[path, version] = _Lookup()
        try:
            found = await lookup.find(lambda: self.playbooks.find(path, version))
        finally:
            if lookup.idle and self._lookups.get((path, version)) is lookup:
                del self._lookups[path, version]
        if found is not None and source_digest(Source(found.text, found.file)) != found.digest:
            raise CorruptLog(
                f"version {found.version} of playbook {path!r} is damaged; restore a backup, or register it"
            )
        return found

    async def register(
        self, source: Source, at: float, *, strict: bool = False, legacy: bool = False, origin: Origin | None = None
    ) -> StoredPlaybook:
        """Add a version under the path of the playbook; raises InvalidPlaybook if it has errors."""
        if source.file.startswith(BUNDLE):
            await self.bundles.check(source.file, source.text)
        else:
            source = msgspec.structs.replace(source, file="")
        playbook = await self.compile(source, strict=strict, legacy=legacy)
        return await self.playbooks.register(
            StoredPlaybook(playbook.path, 0, playbook.digest, source.text, at, source.file, origin or Origin())
        )

    def _remember(self, cache: OrderedDict[K, T], key: K, value: T) -> None:
        cache[key] = value
        if len(cache) > self._capacity:
            cache.popitem(last=False)


class _Lookup:
    """Shares one store query among concurrent callers. A caller never gets the result of a query that began before
    its call, so results are as new as without sharing."""

    def __init__(self) -> None:
        self._current: asyncio.Task[StoredPlaybook | None] | None = None
        self._next: asyncio.Task[StoredPlaybook | None] | None = None

    @property
    def idle(self) -> bool:
        """Whether no query is running."""
        return self._current is None

    async def find(self, query: Callable[[], Awaitable[StoredPlaybook | None]]) -> StoredPlaybook | None:
        """The result of the next query to begin."""
        if self._current is None:
            self._current = asyncio.ensure_future(self._run(None, query))
            return await asyncio.shield(self._current)
        if self._next is None:
            self._next = asyncio.ensure_future(self._run(self._current, query))
        return await asyncio.shield(self._next)

    async def _run(
        self,
        before: asyncio.Task[StoredPlaybook | None] | None,
        query: Callable[[], Awaitable[StoredPlaybook | None]],
    ) -> StoredPlaybook | None:
        if before is not None:
            await asyncio.wait((before,))
            self._current, self._next = self._next, None
        try:
            return await query()
        finally:
            if self._next is None:
                self._current = None


_MODES = tuple((strict, legacy) for strict in (False, True) for legacy in (False, True))


def _relative(file: str) -> str:
    """A file below the working folder, relative to it; empty for other files."""
    folder = os.path.join(os.getcwd(), "")
    return file.removeprefix(folder) if file.startswith(folder) else ""


def source_digest(source: Source) -> str:
    """The digest of a text with its file."""
    return hashlib.sha256(f"{source.file}\0{source.text}".encode()).hexdigest()[:32]
