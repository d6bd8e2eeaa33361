"""Compression of whole files: gzip, Zstandard, bzip2 and xz, by name or by the extension of the file."""

from __future__ import annotations

import io
import shutil
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path
from typing import Any

ENDINGS = {
    "gz": "gzip", "gzip": "gzip", "zst": "zstd", "zstd": "zstd", "bz2": "bz2", "bzip2": "bz2", "xz": "xz",
}  # fmt: skip
FOREIGN = ("7z", "br", "lz4", "lzma", "lzo", "rar", "snappy", "sz", "z", "zip")  # that are neither read nor written
NAMES = ("gzip", "zstd", "bz2", "xz", "none")
_BEGINNINGS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bz2", b"\xfd7zXZ\x00": "xz"}
_BLOCK = 1 << 16
COLUMNAR = ("parquet", "arrow")
CODECS = {"parquet": ("zstd", "gzip", "snappy", "none"), "arrow": ("zstd", "none")}


def without_ending(path: str) -> str:
    """The path without the extension of a compressed file: `orders.csv` of `orders.csv.gz`."""
    stem, _, ending = path.rpartition(".")
    return stem if stem and ending.lower() in ENDINGS else path


def compression_of(given: Any, path: str, format: str) -> str | None:
    """How a file is compressed (by the given name, or its extension); None if it is not. ValueError if it cannot be."""
    ending = ENDINGS.get(path.rpartition(".")[2].lower()) if without_ending(path) != path else None
    if given in (None, "", "auto"):
        name = ending
    else:
        name = ENDINGS.get(str(given).lower(), str(given).lower())
        choices = CODECS.get(format, NAMES)
        if name not in choices:
            raise ValueError(f"compression {given!r} is not one of {', '.join(choices)} (format {format})")
    stem, _, last = path.rpartition(".")
    if stem and last.lower() in FOREIGN and format not in ("bytes", "text"):
        raise ValueError(f"{path}: .{last} is not supported; use .gz, .zst, .bz2 or .xz")
    if format in COLUMNAR and ending:
        raise ValueError(f"{path}: {format} is compressed inside the file; leave the extension out")
    return None if name == "none" and format not in COLUMNAR else name


class Compressor:
    """Compresses blocks; what is complete is returned by each call."""

    def __init__(self, name: str) -> None:
        self._sink = _Sink()
        if name == "xz":
            import lzma

            self._stream: Any = lzma.LZMAFile(self._sink, "w")  # type: ignore[arg-type]  # noqa: SIM115
        else:
            import pyarrow as pa

            self._stream = pa.CompressedOutputStream(pa.PythonFile(self._sink, mode="w"), name)

    def write(self, data: bytes) -> bytes:
        """Compress a block."""
        if data:
            self._stream.write(data)
        return self._sink.take()

    def close(self) -> bytes:
        """Return the rest."""
        self._stream.close()
        return self._sink.take()


class _Sink:
    """A file that holds what was written since the last `take`."""

    closed = False

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, data: Any) -> int:
        self._pieces.append(bytes(data))
        return len(self._pieces[-1])

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """What was written stays readable."""

    def take(self) -> bytes:
        taken, self._pieces = b"".join(self._pieces), []
        return taken


def is_compressed(path: str) -> bool:
    """Whether the extension of a file says that it is compressed."""
    return without_ending(path) != path


def compressed_by(start: bytes) -> str | None:
    """How content with these first bytes is compressed."""
    return next((name for beginning, name in _BEGINNINGS.items() if start.startswith(beginning)), None)


async def compressed_blocks(blocks: AsyncIterator[bytes], name: str) -> AsyncGenerator[bytes, None]:
    """The blocks, compressed."""
    compressor = Compressor(name)
    async for block in blocks:
        if packed := compressor.write(block):
            yield packed
    yield compressor.close()


def compress(data: bytes, name: str) -> bytes:
    """All of the data, compressed."""
    compressor = Compressor(name)
    return compressor.write(data) + compressor.close()


def decompress(data: bytes, name: str, most: int = -1) -> bytes:
    """All of the data; ValueError if it is not compressed in this way, or has more than `most` bytes."""
    with _reader(io.BufferedReader(io.BytesIO(data)), name) as reader:
        content: bytes = _checked(lambda: reader.read(most + 1 if most >= 0 else None), name)
    if 0 <= most < len(content):
        raise ValueError(f"the content has more than {most >> 20} MiB without its compression")
    return content


def decompress_file(source: str, target: str, name: str) -> None:
    """Decompress a file into another; ValueError if it is not compressed in this way."""
    with Path(source).open("rb") as file, _reader(file, name) as reader, Path(target).open("wb") as out:
        _checked(lambda: shutil.copyfileobj(reader, out, 1 << 20), name)


class _Members(io.RawIOBase):
    """The content of one or more members of bzip2 or xz, one after the other.

    `BZ2File` and `LZMAFile` ignore what follows the first member if it is damaged."""

    def __init__(self, file: Any, new: Callable[[], Any]) -> None:
        self._file, self._new, self._member = file, new, new()
        self._unused = b""

    def readable(self) -> bool:
        """It can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Decompress the next bytes."""
        while True:
            if self._member.eof:
                self._unused = self._after_padding(self._member.unused_data)
                if not self._unused:
                    return 0
                self._member = self._new()
            elif self._member.needs_input and not self._unused:
                self._unused = self._file.read(_BLOCK)
                if not self._unused:
                    raise EOFError("the end is missing")
            given, self._unused = self._unused, b""
            data = self._member.decompress(given, len(buffer))
            if data:
                buffer[: len(data)] = data
                return len(data)

    def _after_padding(self, rest: bytes) -> bytes:
        """The bytes of the next member; NUL between and after members is allowed."""
        while not rest.strip(b"\0"):
            rest = self._file.read(_BLOCK)
            if not rest:
                return b""
        return rest.lstrip(b"\0")


def _reader(file: Any, name: str) -> Any:
    if not file.peek(1):
        raise ValueError(f"the content is not valid {name}: it is empty")
    if name == "gzip":
        import gzip

        return gzip.GzipFile(fileobj=file)  # also several members, one after the other
    if name == "bz2":
        import bz2

        return io.BufferedReader(_Members(file, bz2.BZ2Decompressor), _BLOCK)
    if name == "xz":
        import lzma

        return io.BufferedReader(_Members(file, lzma.LZMADecompressor), _BLOCK)
    import pyarrow as pa

    return pa.CompressedInputStream(pa.PythonFile(file, mode="r"), name)


def _checked(read: Any, what: str) -> Any:
    import lzma
    import zlib

    try:
        return read()
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as wrong:
        raise ValueError(f"the content is not valid {what}: {wrong}") from None
