"""Errors of a disk that a later attempt does not have, as sentences that name the remedy."""

from __future__ import annotations

import errno

_REMEDIES = {
    errno.ENOSPC: "the disk is full; free disk space and retry",
    errno.EDQUOT: "the disk quota is used up; free disk space and retry",
    errno.EIO: "the disk cannot be read or written; check it and its file system, and retry",
    errno.EROFS: "the file system is read-only; check the disk, mount it writable and retry",
    errno.EMFILE: "this process has too many open files; raise its limit (`ulimit -n`) and retry",
    errno.ENFILE: "the system has too many open files; raise its limit and retry",
}


def is_full(problem: OSError) -> bool:
    """Whether there is no space left."""
    return problem.errno in (errno.ENOSPC, errno.EDQUOT)


def disk_error(problem: OSError, place: object = "") -> str | None:
    """What is wrong with the disk and what to do; None for other errors. `place` is for errors that name no file."""
    remedy = _REMEDIES.get(problem.errno or 0)
    where = problem.filename or place
    return f"{where}: {remedy}" if remedy and where else remedy
