"""A real MariaDB server from Debian packages, started by an unprivileged or any other user."""

from __future__ import annotations

import getpass
import os
import subprocess
from pathlib import Path

from debian import libraries

PACKAGES = ("mariadb-server-core", "mariadb-server", "mariadb-common", "libaio1", "liburing2")
SCRIPTS = ("mysql_system_tables.sql", "mysql_performance_tables.sql", "mysql_system_tables_data.sql")
USER, PASSWORD = "noetl", "s3cret'\"word"


def command(mariadbd: str, folder: Path, port: int) -> list[str]:
    """Create the system tables in a folder; returns the command that starts the server."""
    base = Path(mariadbd).parents[1]
    data, temporary = folder / "data", folder / "tmp"  # at its start, a server removes the temporary tables of others
    data.mkdir()
    temporary.mkdir()
    options = [
        mariadbd, "--no-defaults", f"--user={getpass.getuser()}", f"--basedir={base}", f"--datadir={data}",
        f"--tmpdir={temporary}",
        f"--lc-messages-dir={base / 'share' / 'mysql'}", f"--plugin-dir={base / 'lib' / 'mysql' / 'plugin'}",
        "--innodb-buffer-pool-size=64M", "--innodb-log-file-size=16M", "--innodb-flush-log-at-trx-commit=0",
    ]  # fmt: skip
    quoted = PASSWORD.replace("'", "''")
    lines = ["CREATE DATABASE mysql;", "USE mysql;"]
    lines += [(base / "share" / "mysql" / name).read_text(errors="replace") for name in SCRIPTS]
    lines += [
        "FLUSH PRIVILEGES;",
        f"CREATE USER '{USER}'@'127.0.0.1' IDENTIFIED BY '{quoted}';",
        f"GRANT ALL ON *.* TO '{USER}'@'127.0.0.1';",
        "CREATE USER 'reader'@'127.0.0.1' IDENTIFIED BY 'reader';",
        "CREATE DATABASE noetl CHARACTER SET utf8mb4;",
        "GRANT SELECT ON noetl.* TO 'reader'@'127.0.0.1';",
    ]
    ran = subprocess.run(
        [*options, "--bootstrap", "--skip-networking"],
        input="\n".join(lines).encode(), capture_output=True, env=libraries(mariadbd), timeout=120,
    )  # fmt: skip
    if ran.returncode:
        raise RuntimeError(f"MariaDB could not create its tables:\n{ran.stderr.decode(errors='replace')[-2000:]}")
    socket = f"/tmp/noetl-mysql-{os.getpid()}-{port}.sock"
    return [*options, f"--port={port}", "--bind-address=127.0.0.1", f"--socket={socket}", "--skip-name-resolve"]
