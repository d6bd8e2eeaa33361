"""From a path, a file or a digest to a compiled playbook.

A digest names a text *and* the file it came from, since relative paths inside a playbook are
found beside it. Compiling is pure, so a playbook found again after a restart is the one that
ran; it is then read in the most permissive mode, as everything that was ever accepted is
accepted there and means the same.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec

from noetl.core.model.playbook import Playbook
from noetl.core.model.tool import ToolSpec
from noetl.errors import CorruptLog, InvalidPlaybook, NotFound
from noetl.storage.ports.playbooks import PlaybookStore, StoredPlaybook

if TYPE_CHECKING:
    from noetl.core.language.compile import Compilation

K = TypeVar("K")
T = TypeVar("T")

DESKS = 2  # texts that are read beside the loop at the same time
SHORT = 4_000  # characters of a text that is compiled sooner than somebody else is asked to

Files = Callable[[str, str], Awaitable[tuple[str, str] | None]]
"""(path as written, file of the caller) -> text and file; None when there is none."""


class Source(msgspec.Struct, frozen=True):
    """A playbook's text, where it came from, and the version it has in the catalog."""

    text: str
    file: str = ""
    version: str | None = None


class Catalog:
    """Compiles, remembers and finds playbooks."""

    def __init__(
        self,
        playbooks: PlaybookStore,
        specs: Callable[[], Mapping[str, ToolSpec]],
        files: Files | None = None,
        capacity: int = 256,
    ) -> None:
        self._playbooks = playbooks
        self._specs = specs
        self._files = files
        self._capacity = capacity
        self._compiled: OrderedDict[tuple[str, bool, bool], Playbook] = OrderedDict()  # digest, strict, legacy
        self._encoded: OrderedDict[str, bytes] = OrderedDict()
        self._kept: OrderedDict[str, None] = OrderedDict()
        self._desk = asyncio.Semaphore(DESKS)
        self._lookups: dict[tuple[str, int | None], _Lookup] = {}

    # ── compiling ───────────────────────────────────────────────────────────────────────

    def compile(self, source: Source, *, strict: bool = False, legacy: bool = False) -> Playbook:
        """The compiled playbook; InvalidPlaybook has all diagnostics."""
        known = self._compiled.get((source_digest(source), strict, legacy))
        if known is not None:
            return known
        return self._made(source, self.check(source, strict=strict, legacy=legacy), strict, legacy)

    def _made(self, source: Source, compilation: Compilation, strict: bool, legacy: bool) -> Playbook:
        if compilation.playbook is None:
            raise InvalidPlaybook(compilation.diagnostics)
        digest = source_digest(source)
        playbook = msgspec.structs.replace(compilation.playbook, digest=digest, file=source.file)
        self._remember(self._compiled, (digest, strict, legacy), playbook)
        return playbook

    def check(self, source: Source, *, strict: bool = False, legacy: bool = False) -> Compilation:
        """All that the compiler says of a text."""
        from noetl.core.language.compile import compile_playbook

        return compile_playbook(source.text, file=source.file, specs=self._specs(), strict=strict, legacy=legacy)

    async def compiled(self, source: Source, *, strict: bool = False, legacy: bool = False) -> Playbook:
        """The same, while others go on: a long text is compiled beside the loop."""
        if len(source.text) <= SHORT or (source_digest(source), strict, legacy) in self._compiled:
            return self.compile(source, strict=strict, legacy=legacy)
        compilation = await self.aside(lambda: self.check(source, strict=strict, legacy=legacy))
        return self._made(source, compilation, strict, legacy)

    async def aside(self, work: Callable[[], T]) -> T:
        """Thinking that may take seconds, done beside the loop: leases, streams and decisions go on meanwhile."""
        async with self._desk:
            return await asyncio.to_thread(work)

    async def load(self, digest: str) -> Playbook:
        """The playbook an execution was started from."""
        for mode in _MODES:
            known = self._compiled.get((digest, *mode))
            if known is not None:
                return known
        return await self.compiled(await self.source(digest), legacy=True)

    async def source(self, digest: str) -> Source:
        """The text an execution was started from."""
        kept = await self._playbooks.text(digest)
        if kept is None:
            raise CorruptLog(f"the text of playbook {digest} is missing from the store")
        source = Source(*kept)
        if source_digest(source) != digest:
            raise CorruptLog(f"the text of playbook {digest} is damaged")
        return source

    async def keep(self, playbook: Playbook, source: Source) -> None:
        """Remember the text, so that `load` finds it for ever."""
        await self._playbooks.keep(playbook.digest, source.text, source.file)
        self._remember(self._kept, playbook.digest, None)

    def has_kept(self, playbook: Playbook) -> bool:
        """Whether this process knows the text to be kept already."""
        return playbook.digest in self._kept

    async def encoded(self, digest: str) -> bytes:
        """The compiled playbook as JSON, for workers."""
        known = self._encoded.get(digest)
        if known is None:
            known = msgspec.json.encode(await self.load(digest))
            self._remember(self._encoded, digest, known)
        return known

    # ── finding ─────────────────────────────────────────────────────────────────────────

    async def find(self, path: str, version: int | str | None = None, caller: str = "") -> Source:
        """In the catalog, then as a file beside the caller; NotFound says where was looked."""
        stored = await self.registered(path, version)
        if stored is not None:
            return Source(stored.text, stored.file, str(stored.version))
        if version is None and self._files is not None:
            found = await self._files(path, caller)
            if found is not None:
                return Source(*found)
        where = "in the catalog" if self._files is None or version is not None else "in the catalog or as a file"
        which = f"playbook {path!r}" + (f" version {version}" if version is not None else "")
        raise NotFound(f"there is no {which} {where}; register it with `noetl register FILE`")

    async def registered(self, path: str, version: int | str | None = None) -> StoredPlaybook | None:
        """A version of the catalog, or the newest."""
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
            return await lookup.look(lambda: self._playbooks.find(path, version))
        finally:
            if lookup.idle and self._lookups.get((path, version)) is lookup:
                del self._lookups[path, version]

    async def list(
        self, *, search: str | None = None, after: str | None = None, limit: int = 100
    ) -> list[StoredPlaybook]:
        """The newest version of each path, one page."""
        return await self._playbooks.list(search=search, after=after, limit=limit)

    async def versions(self, path: str, *, before: int | None = None, limit: int = 100) -> Sequence[StoredPlaybook]:
        """The versions of a path, newest first, one page."""
        return await self._playbooks.versions(path, before=before, limit=limit)

    async def register(
        self, source: Source, at: float, *, strict: bool = False, legacy: bool = False
    ) -> StoredPlaybook:
        """A new version under the playbook's own path; InvalidPlaybook when it has errors."""
        playbook = await self.compiled(msgspec.structs.replace(source, file=""), strict=strict, legacy=legacy)
        return await self._playbooks.register(playbook.path, playbook.digest, source.text, at)

    def _remember(self, cache: OrderedDict[K, T], key: K, value: T) -> None:
        cache[key] = value
        if len(cache) > self._capacity:
            cache.popitem(last=False)


class _Lookup:
    """One question to the store for all who ask the same at once: each is answered by a look that began after it asked,
    so nobody gets an older answer than alone."""

    def __init__(self) -> None:
        self._now: asyncio.Task[StoredPlaybook | None] | None = None
        self._next: asyncio.Task[StoredPlaybook | None] | None = None

    @property
    def idle(self) -> bool:
        """Nobody asks."""
        return self._now is None

    async def look(self, find: Callable[[], Awaitable[StoredPlaybook | None]]) -> StoredPlaybook | None:
        """What the store has."""
        if self._now is None:
            self._now = asyncio.ensure_future(self._find(None, find))
            return await asyncio.shield(self._now)
        if self._next is None:
            self._next = asyncio.ensure_future(self._find(self._now, find))
        return await asyncio.shield(self._next)

    async def _find(
        self,
        before: asyncio.Task[StoredPlaybook | None] | None,
        find: Callable[[], Awaitable[StoredPlaybook | None]],
    ) -> StoredPlaybook | None:
        if before is not None:
            await asyncio.wait((before,))
            self._now, self._next = self._next, None
        try:
            return await find()
        finally:
            if self._next is None:
                self._now = None


_MODES = tuple((strict, legacy) for strict in (False, True) for legacy in (False, True))


def source_digest(source: Source) -> str:
    """The digest of a text with its file name, as stored with executions and in the log."""
    return hashlib.sha256(f"{source.file}\0{source.text}".encode()).hexdigest()[:32]
