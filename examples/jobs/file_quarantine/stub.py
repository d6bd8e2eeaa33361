"""The sender of this job: `python stub.py FOLDER` writes three files, one with bad rows and one that is no CSV."""

from __future__ import annotations

import sys
from pathlib import Path

FILES = {
    "1-good.csv": b"id,amount,day\n1,10.50,2026-01-01\n2,20,2026-01-02\n",
    "2-mixed.csv": b"id,amount,day\n3,30,2026-01-03\nx,1,2026-01-03\n4,many,2026-01-04\n5,50,soon\n6,60,2026-01-06\n",
    "3-broken.csv": b"\x00\xff\xfe\x00 this is no table",
}

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
