"""Compressed files: several members, cut and damaged ones."""

from __future__ import annotations

import bz2
import gzip
import lzma
from pathlib import Path

import pyarrow as pa
import pytest

from noetl.data.files.compression import compressed_by, decompress, decompress_file

TEXT = b"".join(b"%d,name %d\n" % (number, number * 7919) for number in range(40_000))
COMPRESS = {
    "gzip": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zstd": lambda data: pa.compress(data, "zstd", asbytes=True),
}


def read(data: bytes, codec: str, folder: Path) -> bytes:
    """The content, which is the same in memory and in a file."""
    (folder / "packed").write_bytes(data)
    content = decompress(data, codec)
    decompress_file(str(folder / "packed"), str(folder / "plain"), codec)
    assert (folder / "plain").read_bytes() == content
    return content


@pytest.mark.parametrize("codec", COMPRESS)
def test_several_members_are_one_content(tmp_path: Path, codec: str) -> None:
    pack = COMPRESS[codec]
    assert read(pack(TEXT), codec, tmp_path) == TEXT
    assert read(pack(TEXT[:70_000]) + pack(b"") + pack(TEXT[70_000:]), codec, tmp_path) == TEXT
    assert compressed_by(pack(TEXT)) == codec


@pytest.mark.parametrize("codec", COMPRESS)
@pytest.mark.parametrize("damage", ["empty", "cut", "cut member", "other bytes", "damaged member"])
def test_what_is_damaged_is_an_error(tmp_path: Path, codec: str, damage: str) -> None:
    packed = COMPRESS[codec](TEXT)
    data = {
        "empty": b"",
        "cut": packed[:-3],
        "cut member": packed + packed[: len(packed) // 2],
        "other bytes": packed + b"other",
        "damaged member": packed + b"#" + packed[1:],
    }[damage]
    with pytest.raises(ValueError, match=f"the content is not valid {codec}"):
        decompress(data, codec)
    (tmp_path / "packed").write_bytes(data)
    with pytest.raises(ValueError, match=f"the content is not valid {codec}"):
        decompress_file(str(tmp_path / "packed"), str(tmp_path / "plain"), codec)


@pytest.mark.parametrize("codec", ["gzip", "bz2", "xz"])
def test_padding_between_and_after_members_is_no_content(tmp_path: Path, codec: str) -> None:
    pack, padding = COMPRESS[codec], bytes(131_084)
    between = b"" if codec == "gzip" else padding
    assert read(pack(TEXT[:70_000]) + between + pack(TEXT[70_000:]) + padding, codec, tmp_path) == TEXT
