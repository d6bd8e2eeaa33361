"""Files and objects as a source: one, or all that match a pattern, also compressed, and only new ones.

Parquet and Arrow objects are read in ranges. Of several objects, many are fetched at a time into a temporary folder
and read together: a million small ones need neither a million round trips one after the other nor memory.
"""

from __future__ import annotations

import asyncio
import codecs
import glob
import shutil
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import obstore

from noetl.connections import objects
from noetl.connections.auth import fields_of
from noetl.core.model.outcome import error_info
from noetl.core.model.tool import ToolCall
from noetl.data.content import save
from noetl.data.files import compression, formats
from noetl.data.files.duckdb_files import is_blank
from noetl.data.key_patterns import MARKS, alternatives, is_pattern, key_pattern
from noetl.runtime.tasks import cancel
from noetl.runtime.temporary_folders import TemporaryFolder
from noetl.runtime.threads import in_thread
from noetl.tools._common.sql_task import BadInput, flag
from noetl.tools.transfer.chunks import Mark
from noetl.tools.transfer.failures import ExplainedError
from noetl.tools.transfer.quarantine.bad_rows import NumberedRows, SourceRows
from noetl.tools.transfer.sources import spreadsheet_source as sheets
from noetl.tools.transfer.sources.arrow_rows import UntypedColumns, declared_types
from noetl.tools.transfer.sources.file_source import Files, file_batches, ranged_batches, resolve_address, with_types
from noetl.tools.transfer.transfer_plan import Plan

GROUP_OBJECTS = 500  # fetched and read together
GROUP_BYTES = 64 << 20
IN_FLIGHT = 64


class FoundObject(NamedTuple):
    """A file or object that a pattern matches."""

    uri: str
    key: str  # in its store; the path of a file
    size: int
    version: str


class ObjectSource:
    """Parquet, Arrow, CSV, JSON, JSON lines, Excel or text of fixed width; `*` matches several files or objects."""

    def __init__(self, call: ToolCall, fields: dict[str, Any], plan: Plan, rows: SourceRows | None = None) -> None:
        self._call = call
        self._source_rows = rows
        self._fields = fields
        self._path = plan.path
        self._evolves = plan.evolves
        self._untyped = UntypedColumns(declared_types(fields.get("types")))
        self.only_new = flag(fields.get("only_new"), False)
        self.resumes = flag(fields.get("resume"), True)
        self.marks_objects = False  # a mark with the number of objects so far is between two groups
        self.known: dict[str, str] = {}  # object -> the version that was loaded before
        self.found: list[FoundObject] = []  # the objects to load
        self.versions: dict[str, str] = {}  # that were read, of objects that have changed since they were listed
        self.skipped = 0

    async def batches(self) -> AsyncGenerator[Any, None]:
        """The rows."""
        address = str(self._fields["uri"])
        self._credential = await fields_of(self._fields.get("auth"), self._call.host, prefixes=objects.PREFIXES)
        place = resolve_address(self._call, self._fields, address, self._credential)
        self._base, self._pattern = "", place.key
        if place.scheme == "file":
            self._base, self._pattern = _in_folder(f"{place.bucket}/{place.key}", self._call.host.resolve_path("."))
        has_pattern = is_pattern(self._pattern)
        if self.only_new or has_pattern or place.scheme != "file":
            stream = self._objects(place, has_pattern)
        else:
            stream = self._file(f"{place.bucket}/{place.key}", address, address)
        async with aclosing(stream):
            async for batch in stream:
                yield batch

    async def count(self) -> int | None:
        """Not known in advance."""
        return None

    async def close(self) -> None:
        """No resources to release."""

    # ── one file ─────────────────────────────────────────────────────────────────────────────

    async def _file(self, path: str, key: str, name: str, format: str | None = None) -> AsyncGenerator[Any, None]:
        """The rows of a local file; its key decides the format, and errors have its name."""
        if not await asyncio.to_thread(Path(path).exists):
            raise FileNotFoundError(2, "file not found", path)
        format = format or self._format(key)
        codec = self._codec(key, format)
        with TemporaryFolder("noetl-transfer-") as folder:
            if codec is not None:
                plain = str(Path(folder, Path(compression.without_ending(key)).name))
                await in_thread(partial(_decompress, path, plain, codec, name))
                path = plain
            elif format in ("csv", "json", "jsonl") and compression.is_compressed(path):
                # DuckDB would decompress a file with this name.
                plain = str(Path(folder, Path(compression.without_ending(path)).name))
                await in_thread(partial(_link, path, Path(plain)))
                path = plain
            path = await self._as_utf8(path, format, name, Path(folder, f"utf8-{Path(path).name}"))
            if MARKS.search(path):  # a plain path, which must not be read as a pattern
                plain = str(Path(folder, "plain-" + MARKS.sub("_", Path(path).name)))
                await in_thread(partial(_link, path, Path(plain)))
                path = plain
            if format == "csv" and await asyncio.to_thread(is_blank, path):
                path = str(Path(folder, "empty.csv"))
                _store_content(Path(path), b"")
            stream = self._rows(Files(path, format, {path: name}))
            async with aclosing(stream):
                async for batch in stream:
                    yield batch

    async def _rows(self, files: Files) -> AsyncGenerator[Any, None]:
        """The rows of local files; in those without types, columns without a value have none if a target evolves."""
        stream = self._typed_rows(files)
        has_types = files.format in compression.COLUMNAR or not self._evolves
        async with aclosing(stream):
            async for batch in stream:
                yield batch if has_types else self._untyped.apply(batch)

    async def _typed_rows(self, files: Files) -> AsyncGenerator[Any, None]:
        if files.format in sheets.FORMATS:
            read = sheets.excel_batches if files.format == "excel" else sheets.fixed_batches
            for each in await asyncio.to_thread(files.paths):
                name = files.name(each)
                batches = read(each, self._fields, NumberedRows(self._source_rows, name), name)
                while (batch := await in_thread(partial(next, batches, None))) is not None:
                    yield batch
            return
        stream = file_batches(files, self._path, self._fields.get("types"), self._source_rows, evolves=self._evolves)
        async with aclosing(stream):
            async for batch in stream:
                yield batch

    def _format(self, name: str, content_type: str | None = None) -> str:
        given = str(self._fields.get("format") or "").lower()
        if given in sheets.FORMATS:
            return given
        by_ending = sheets.format_by_ending(name) if not given or given == "auto" else None
        try:
            return by_ending or formats.format_of(given=given, content_type=content_type, path=name.rstrip("*"))
        except ValueError as wrong:
            raise BadInput(f"the source: {wrong}") from None

    def _codec(self, name: str, format: str) -> str | None:
        if format in compression.COLUMNAR or format == "excel":
            return None
        try:
            return compression.compression_of(self._fields.get("compression"), name, format)
        except ValueError as wrong:
            raise BadInput(f"the source: {wrong}") from None

    async def _as_utf8(self, path: str, format: str, name: str, copy: Path) -> str:
        """The path of a text in UTF-8: of a copy, if it has another encoding or, as JSON, a byte order mark."""
        if format not in ("csv", "json", "jsonl"):
            return path
        encoding = sheets.read_encoding(self._fields.get("encoding"))
        if encoding == "utf-8-sig" and (format == "csv" or not await asyncio.to_thread(_has_mark, path)):
            return path
        await in_thread(partial(_write_utf8, path, encoding, name, copy))
        return str(copy)

    # ── several files or objects ─────────────────────────────────────────────────────────────

    async def _objects(self, place: objects.ObjectLocation, has_pattern: bool) -> AsyncGenerator[Any, None]:
        store = None if place.scheme == "file" else await self._store(place)
        found = await self._find(store, place)
        if not found and not (self.only_new and has_pattern and await self._has_folder(store)):
            raise FileNotFoundError(2, "not found: nothing matches", place.url)
        self.found = [each for each in found if not self.only_new or self.known.get(each.uri) != each.version]
        self.skipped = len(found) - len(self.found)
        if store is not None and len(found) == 1 and self.found:
            stream = self._one_object(store, self.found[0])
        else:
            stream = self._groups(store)
        async with aclosing(stream):
            async for batch in stream:
                yield batch

    async def _store(self, place: objects.ObjectLocation) -> Any:
        return await objects.checked_store(place, self._credential, self._call.host.address_check, self._call.timeout)

    async def _find(self, store: Any, place: objects.ObjectLocation) -> list[FoundObject]:
        """What the address matches, in the order of the names.

        A pattern that matches nothing may have braces that are no alternatives, or be a plain name."""
        if store is None:
            return await asyncio.to_thread(_local_files, self._base, self._pattern)
        patterns = [key_pattern(place.key, braces=True), key_pattern(place.key)]
        found: list[FoundObject] = []
        for keys in dict.fromkeys(patterns):
            if keys is not None and not found:
                async for page in obstore.list(store, prefix=keys.folder or None, chunk_size=1000):
                    found += [_found(place, entry) for entry in page if keys.matches(entry["path"])]
        if found or "*" in place.key:
            return sorted(found)
        try:
            return [_found(place, await obstore.head_async(store, place.key))]
        except FileNotFoundError:
            if patterns[0] is None:
                raise
            return []

    async def _has_folder(self, store: Any) -> bool:
        """Whether new objects can appear there; a store has no folders, and has listed its bucket."""
        if store is not None:
            return True
        pattern = key_pattern(self._pattern, braces=True)
        return pattern is not None and await asyncio.to_thread(Path(self._base, pattern.folder).is_dir)

    async def _one_object(self, store: Any, found: FoundObject) -> AsyncGenerator[Any, None]:
        payload = await objects.payload_of(store, found.key)
        self._note(found, payload.known["etag"] or found.version)
        format = self._format(found.key, payload.content_type)
        if format in compression.COLUMNAR:
            types = declared_types(self._fields.get("types"))
            ranged = ranged_batches(payload, format, found.uri)
            numbered = NumberedRows(self._source_rows, found.uri)
            async with aclosing(ranged):
                async for batch in ranged:
                    for part in numbered.converted(lambda part: with_types(part, types), batch):
                        yield part
            return
        with TemporaryFolder("noetl-transfer-") as folder:
            local = str(Path(folder, Path(found.key).name))
            await save(payload.stream(), local)
            stream = self._file(local, found.key, found.uri, format)
            async with aclosing(stream):
                async for batch in stream:
                    yield batch

    async def _groups(self, store: Any) -> AsyncGenerator[Any, None]:
        """The rows of all objects; the next ones are fetched while the rows of some are used."""
        groups = _groups(self.found)
        read = 0
        pending = self._start(store, next(groups, None))
        try:
            while pending is not None:
                folder, format, names = await pending
                pending = self._start(store, next(groups, None))
                try:
                    stream = self._rows(Files(str(Path(folder.name, f"*.{format}")), format, names))
                    async with aclosing(stream):
                        async for batch in stream:
                            yield batch
                finally:
                    await in_thread(folder.cleanup)
                if store is None and self.only_new:
                    await asyncio.to_thread(self._check_unchanged, self.found[read : read + len(names)])
                read += len(names)
                if self.marks_objects and pending is not None:  # the end of the load commits the last group
                    yield Mark(read, {})
        finally:
            if pending is not None:
                pending.cancel()
                await asyncio.wait([pending])
                if not pending.cancelled() and pending.exception() is None:
                    pending.result()[0].cleanup()

    def _note(self, found: FoundObject, version: str) -> None:
        """Note the version that is read, if the object has changed since it was listed."""
        if version != found.version:
            self.versions[found.uri] = version

    def _check_unchanged(self, group: Sequence[FoundObject]) -> None:
        """An error for files that were changed while they were read: which rows were loaded is not known."""
        for each in group:
            is_there = Path(each.key).exists()  # otherwise it was removed after it was read
            if is_there and _file_version(each.key) != self.versions.get(each.uri, each.version):
                problem = f"{each.uri} was changed while it was read; its rows are not loaded: run it again"
                raise ExplainedError(error_info("state.conflict", problem))

    def _start(self, store: Any, group: Sequence[FoundObject] | None) -> asyncio.Task[Any] | None:
        return None if group is None else asyncio.create_task(self._fetch(store, group))

    async def _fetch(self, store: Any, group: Sequence[FoundObject]) -> tuple[Any, str, dict[str, str]]:
        """The objects of a group, decompressed, in a temporary folder."""
        folder = TemporaryFolder("noetl-transfer-")
        format = self._format(group[0].key)
        names: dict[str, str] = {}
        room = asyncio.Semaphore(IN_FLIGHT)

        async def fetch(number: int, found: FoundObject) -> None:
            if self._format(found.key) != format:
                raise BadInput(f"{found.uri} is {self._format(found.key)}, and {group[0].uri} is {format}")
            target = Path(folder.name, f"{number:06}.{format}")
            names[str(target)] = found.uri
            codec = self._codec(found.key, format)
            if store is None:
                self._note(found, await asyncio.to_thread(_file_version, found.key))
                if codec is None:
                    await in_thread(partial(_link, found.key, target))
                else:
                    await in_thread(partial(_decompress, found.key, str(target), codec, found.uri))
                return
            async with room:
                result = await obstore.get_async(store, found.key)
                content = bytes(await result.bytes_async())
            self._note(found, _version(result.meta))
            if codec is not None:
                content = await asyncio.to_thread(_decompressed, content, codec, found.uri)
            _store_content(target, content)

        fetching = [asyncio.ensure_future(fetch(number, found)) for number, found in enumerate(group)]
        try:
            await asyncio.gather(*fetching)
            for path, uri in names.items():
                copy = await self._as_utf8(path, format, uri, Path(path).with_suffix(".utf8"))
                if copy != path:
                    await in_thread(partial(Path(copy).replace, path))
            if format == "csv":
                await in_thread(partial(_remove_blank, [Path(each) for each in names]))
        except BaseException:
            await cancel(*fetching)  # the others would write into the folder while it is removed
            await in_thread(folder.cleanup)
            raise
        self._call.host.progress(objects=len(names))
        return folder, format, names


def _link(path: str, target: Path) -> None:
    target.symlink_to(Path(path).absolute())


def _has_mark(path: str) -> bool:
    with Path(path).open("rb") as file:
        return file.read(3) == codecs.BOM_UTF8


def _write_utf8(path: str, encoding: str, name: str, copy: Path) -> None:
    """Write a copy of a text file in UTF-8."""
    try:
        with (
            Path(path).open(encoding=encoding, newline="") as text,
            copy.open("w", encoding="utf-8", newline="") as out,
        ):
            shutil.copyfileobj(text, out, 1 << 20)
    except UnicodeError as wrong:
        raise BadInput(sheets.wrong_encoding(name, encoding.removesuffix("-sig"), wrong)) from None


def _remove_blank(paths: Sequence[Path]) -> None:
    """Remove files without names of columns, because the first file decides the columns of all; leave one file."""
    blank = [each for each in paths if is_blank(each)]
    for each in blank:
        each.unlink()
    if len(blank) == len(paths):
        _store_content(paths[0], b"")


def _store_content(path: Path, content: bytes) -> None:
    """Write a file; most are small, so a thread would cost more than the write."""
    path.write_bytes(content)


def _decompress(source: str, target: str, codec: str, name: str) -> None:
    try:
        compression.decompress_file(source, target, codec)
    except ValueError as wrong:
        raise BadInput(f"{name}: {wrong}") from None


def _decompressed(content: bytes, codec: str, name: str) -> bytes:
    try:
        return compression.decompress(content, codec)
    except ValueError as wrong:
        raise BadInput(f"{name}: {wrong}") from None


def _found(place: objects.ObjectLocation, entry: Any) -> FoundObject:
    return FoundObject(place._replace(key=entry["path"]).url, entry["path"], entry["size"], _version(entry))


def _version(entry: Any) -> str:
    return str(entry.get("e_tag") or entry.get("version") or entry["last_modified"].isoformat())


def _file_version(path: str) -> str:
    state = Path(path).stat()
    return f"{state.st_mtime_ns}-{state.st_size}"


def _in_folder(path: str, folder: str) -> tuple[str, str]:
    """A path as a folder and the rest: brackets in the name of the playbook's folder are no pattern."""
    base = folder.rstrip("/") + "/"
    return (base, path[len(base) :]) if path.startswith(base) else ("/", path.lstrip("/"))


def _local_files(folder: str, pattern: str) -> list[FoundObject]:
    found: set[str] = set()
    for each in alternatives(pattern):
        if MARKS.search(each):
            found.update(glob.glob(each, root_dir=folder, recursive=True))
        elif Path(folder, each).is_file():
            found.add(each)
    if not found and MARKS.search(pattern):
        found.update(glob.glob(pattern, root_dir=folder, recursive=True))
    paths = [f"{folder}{each}" for each in sorted(found) or [pattern]]
    return [
        FoundObject(f"file://{path}", path, Path(path).stat().st_size, _file_version(path))
        for path in paths
        if Path(path).is_file() and not path.endswith(".unfinished")
    ]


def _groups(found: list[FoundObject]) -> Iterator[list[FoundObject]]:
    group: list[FoundObject] = []
    size = 0
    for each in found:
        if group and (len(group) == GROUP_OBJECTS or size + each.size > GROUP_BYTES):
            yield group
            group, size = [], 0
        group.append(each)
        size += each.size
    if group:
        yield group
