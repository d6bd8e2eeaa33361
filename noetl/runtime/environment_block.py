"""Erases values from the environment block of this process, which the kernel shows as `/proc/PID/environ`.

`os.environ` is a copy: removing a variable there does not change the block. Other processes of the same user, and code
that reads files inside of this process (SQL of DuckDB), could read a token there. Linux only; elsewhere there is no
such file.
"""

from __future__ import annotations

import re
import sys

PREFIX = "NOETL_"


def erase_values(prefix: str = PREFIX) -> int:
    """Overwrite the values of all variables with this prefix, and return their number. `os.environ` is unchanged."""
    if not sys.platform.startswith("linux"):
        return 0
    try:
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        start, end = int(fields[47]), int(fields[48])  # env_start and env_end
        if not 0 < start < end:
            return 0
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(start)
            block = memory.read(end - start)
            values = list(re.finditer(rb"(?:^|\0)" + re.escape(prefix.encode()) + rb"[^=\0]*=([^\0]*)", block))
            for each in values:
                memory.seek(start + each.start(1))
                memory.write(b"\0" * len(each[1]))
    except OSError:
        return 0  # the kernel does not show this memory, and then it does not show the block to others either
    return len(values)
