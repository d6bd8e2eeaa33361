"""Compression of whole files: gzip and Zstandard, by name or by the extension of the file."""

from __future__ import annotations

import shutil
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

ENDINGS = {"gz": "gzip", "gzip": "gzip", "zst": "zstd", "zstd": "zstd"}
NAMES = ("gzip", "zstd", "none")
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
    if format in COLUMNAR and ending:
        raise ValueError(f"{path}: {format} is compressed inside the file; leave the extension out")
    return None if name == "none" and format not in COLUMNAR else name


class Compressor:
    """Compresses blocks; what is complete is returned by each call."""

    def __init__(self, name: str) -> None:
        import pyarrow as pa

        self._sink = _Sink()
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


def decompress(data: bytes, name: str) -> bytes:
    """All of the data; ValueError if it is not compressed in this way."""
    import io

    with _reader(io.BytesIO(data), name) as reader:
        return _checked(reader.read, name)  # type: ignore[no-any-return]


def decompress_file(source: str, target: str, name: str) -> None:
    """Decompress a file into another; ValueError if it is not compressed in this way."""
    with Path(source).open("rb") as file, _reader(file, name) as reader, Path(target).open("wb") as out:
        _checked(lambda: shutil.copyfileobj(reader, out, 1 << 20), f"{name} ({source})")


def _reader(file: Any, name: str) -> Any:
    if name == "gzip":
        import gzip

        return gzip.GzipFile(fileobj=file)  # also several members, one after the other
    import pyarrow as pa

    return pa.CompressedInputStream(pa.PythonFile(file, mode="r"), name)


def _checked(read: Any, what: str) -> Any:
    import zlib

    try:
        return read()
    except (OSError, EOFError, zlib.error) as wrong:
        raise ValueError(f"the content is not valid {what}: {wrong}") from None
