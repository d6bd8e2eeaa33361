"""Runs a worker as another user (`worker.user`), so that its tasks cannot read the files of the installation."""

from __future__ import annotations

import os
import pwd
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from noetl.errors import RequestRefused
from noetl.settings import Settings


def become_user(settings: Settings) -> None:
    """Change the user of this process for good; RequestRefused if that is not possible.

    Only root can do it. Everything that is read from `NOETL_HOME` (the token) has been read before."""
    name = settings.worker_user
    if name is None:
        return
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise RequestRefused(f"worker.user: there is no user {name!r} on this machine") from None
    if entry.pw_uid == os.geteuid():
        return
    if os.geteuid() != 0:
        raise RequestRefused(f"worker.user: only root can start a worker as {name!r}; start it with `sudo -u {name}`")
    os.initgroups(name, entry.pw_gid)
    os.setresgid(entry.pw_gid, entry.pw_gid, entry.pw_gid)
    os.setresuid(entry.pw_uid, entry.pw_uid, entry.pw_uid)
    os.environ |= {"HOME": entry.pw_dir, "USER": name, "LOGNAME": name}
    if not os.access(os.getcwd(), os.R_OK | os.X_OK):
        os.chdir("/")
    for url in settings.results.split(","):
        parts = urlsplit(url.strip())
        if parts.scheme in ("", "file", "blob", "sqlite") and not _can_write(Path(parts.path)):
            raise RequestRefused(
                f"worker.user: {name} cannot write the result store {url.strip()}; set `results` to a store that "
                "server and workers share, such as postgres:// or s3://"
            )


def bundles_folder(settings: Settings) -> Path:
    """The folder of the files of projects; workers of another user cannot use the one in `NOETL_HOME`."""
    folder = settings.home / "bundles"
    return folder if _can_write(folder) else Path(tempfile.mkdtemp(prefix="noetl-bundles-"))


def _can_write(path: Path) -> bool:
    while not os.path.exists(path) and path != path.parent:
        try:
            path.stat()
        except PermissionError:
            return False
        except OSError:
            path = path.parent
    return os.access(path, os.W_OK | os.X_OK) if path.is_dir() else os.access(path, os.W_OK)
