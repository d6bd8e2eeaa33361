"""The file of a backup: a zip with the entries and a manifest that has the SHA-256 of each.

The manifest is written last, so an incomplete file has none. The file is written beside its target and renamed.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal

import msgspec
from msgspec import Struct, field

from noetl.errors import NotFound, RequestRefused
from noetl.runtime.private_files import flush_folder, private_opener

FORMAT = 1
MANIFEST = "manifest.json"
PROBE = "probe"  # a row that servers write to check the store; not a part
CHUNK = 1 << 20
# A manifest describes each entry and each table; a larger one than these is none.
MANIFEST_BYTES = 16 << 20
MANIFEST_BYTES_PER_ENTRY = 2048
# What zipfile and its decompressors raise for damaged, encrypted and unsupported entries (RuntimeError, ValueError).
_UNREADABLE = (zipfile.BadZipFile, zlib.error, KeyError, OSError, EOFError, ValueError, RuntimeError)


class Entry(Struct, frozen=True):
    """Size and digest of an entry."""

    bytes: int
    sha256: str


class TableCopy(Struct, frozen=True):
    """A copied Postgres table."""

    name: str
    columns: list[str]
    rows: int


class Manifest(Struct, frozen=True, omit_defaults=True):
    """What a backup contains."""

    kind: Literal["sqlite", "postgres"]
    noetl: str
    created_at: str
    versions: dict[str, int]  # schema version by part
    entries: dict[str, Entry] = field(default_factory=dict)
    tables: list[TableCopy] = field(default_factory=list)
    executions: int = 0
    format: int = FORMAT


class BackupWriter:
    """Writes a backup; `finish` completes it."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._temporary = target.with_name(f".{target.name}.{os.getpid()}")
        self._entries: dict[str, Entry] = {}
        descriptor = os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._file = os.fdopen(descriptor, "wb")
        self._zip = zipfile.ZipFile(self._file, "w", zipfile.ZIP_DEFLATED, compresslevel=1)

    @contextmanager
    def entry(self, name: str) -> Iterator[Callable[[bytes], None]]:
        """Write one entry in pieces."""
        digest, size = hashlib.sha256(), 0
        with _named(self._target), self._zip.open(name, "w", force_zip64=True) as out:

            def write(data: bytes) -> None:
                nonlocal size
                digest.update(data)
                size += len(data)
                out.write(data)

            yield write
        self._entries[name] = Entry(size, digest.hexdigest())

    def add_file(self, name: str, file: Path) -> None:
        """Copy a file."""
        with file.open("rb") as source, self.entry(name) as write:
            while chunk := source.read(CHUNK):
                write(chunk)

    def finish(self, manifest: Manifest) -> None:
        """Write the manifest and move the file to its place."""
        complete = msgspec.structs.replace(manifest, entries=self._entries)
        self._zip.writestr(MANIFEST, msgspec.json.format(msgspec.json.encode(complete), indent=2))
        self._zip.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._temporary.replace(self._target)
        flush_folder(self._target.parent)

    def __enter__(self) -> BackupWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._temporary.unlink(missing_ok=True)
        if not self._file.closed:
            with suppress(OSError):  # both write; the first error is the one to raise
                self._zip.close()
            with suppress(OSError):
                self._file.close()


class BackupReader:
    """Reads a backup and checks what it reads."""

    def __init__(self, file: Path) -> None:
        self._name = str(file)
        try:
            self._zip = zipfile.ZipFile(file)
            self.manifest = msgspec.json.decode(self._read_manifest(), type=Manifest)
        except FileNotFoundError:
            raise NotFound(f"{file}: no such file") from None
        except _UNREADABLE as problem:
            raise RequestRefused(f"{file} is not a complete backup of NoETL ({problem})") from None
        if self.manifest.format > FORMAT:
            raise RequestRefused(f"{file} was made by NoETL {self.manifest.noetl}; use that version or a newer one")

    def _read_manifest(self) -> bytes:
        limit = MANIFEST_BYTES + MANIFEST_BYTES_PER_ENTRY * len(self._zip.infolist())
        with self._open(MANIFEST) as source:
            content = source.read(limit + 1)
        if len(content) > limit:
            raise ValueError(f"its manifest has more than {limit >> 20} MB")
        return content

    def _open(self, name: str) -> IO[bytes]:
        if self._zip.getinfo(name).compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError("it is compressed in another way than backups are")
        return self._zip.open(name)

    def chunks(self, name: str) -> Iterator[bytes]:
        """The content of an entry; RequestRefused at its end if it is damaged."""
        known = self.manifest.entries[name]
        digest, size = hashlib.sha256(), 0
        try:
            with self._open(name) as source:
                while chunk := source.read(CHUNK):
                    digest.update(chunk)
                    size += len(chunk)
                    if size > known.bytes:
                        raise self._damaged(name)
                    yield chunk
        except _UNREADABLE as problem:
            raise self._damaged(name) from problem
        if (size, digest.hexdigest()) != (known.bytes, known.sha256):
            raise self._damaged(name)

    def extract(self, name: str, target: Path) -> None:
        """Write an entry to a file that only this user can read."""
        target.parent.mkdir(parents=True, exist_ok=True)
        with _named(target), open(target, "wb", opener=private_opener) as out:
            _copy(self.chunks(name), out)
            out.flush()
            os.fsync(out.fileno())

    def names(self, prefix: str) -> list[str]:
        """The entries below a prefix."""
        return [name for name in self.manifest.entries if name.startswith(prefix)]

    def verify(self) -> int:
        """Read every entry; returns the number of bytes."""
        return sum(len(chunk) for name in self.manifest.entries for chunk in self.chunks(name))

    def _damaged(self, name: str) -> RequestRefused:
        return RequestRefused(f"{self._name} is damaged: {name} does not have its checksum; use another backup")

    def close(self) -> None:
        """Close the file."""
        self._zip.close()


class StagedFiles:
    """Files of a restore beside their places, until all of them are complete: an error leaves what was there."""

    def __init__(self, reader: BackupReader) -> None:
        self._reader = reader
        self._files: list[tuple[Path, Path]] = []

    def add(self, name: str, target: Path) -> None:
        """Extract an entry beside its place."""
        temporary = target.with_name(f".{len(self._files)}.restore")
        self._files.append((temporary, target))
        self._reader.extract(name, temporary)

    def publish(self) -> None:
        """Move all files to their places."""
        for temporary, target in self._files:
            temporary.rename(target)
        for folder in {target.parent for _, target in self._files}:
            flush_folder(folder)

    def __enter__(self) -> StagedFiles:
        return self

    def __exit__(self, *_: object) -> None:
        for temporary, _target in self._files:
            temporary.unlink(missing_ok=True)


@contextmanager
def _named(file: Path) -> Iterator[None]:
    """Name the file in errors of writing it."""
    try:
        yield
    except OSError as problem:
        problem.filename = problem.filename or str(file)
        raise


def _copy(chunks: Iterator[bytes], out: IO[Any]) -> None:
    for chunk in chunks:
        out.write(chunk)
