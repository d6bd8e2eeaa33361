"""Connections to SFTP servers; exceptions of the driver as error kinds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import asyncssh

from noetl.tool import BadAuth, ErrorInfo, Host, Timeout, error_info, flag, server_fields

PREFIXES = ("sftp_", "ssh_")
CONNECT_SECONDS = 15.0
ALIVE_SECONDS = 20.0


@asynccontextmanager
async def connected(auth: Any, host: Host, timeout: Timeout, path: str = "") -> AsyncIterator[Any]:
    """An SFTP session; errors of the server name the path."""
    options = _options(await server_fields(auth, host, schemes=("sftp", "ssh"), prefixes=PREFIXES))
    limit = timeout.connect or CONNECT_SECONDS
    try:
        connection = await asyncssh.connect(**options, connect_timeout=limit, login_timeout=limit)
    except asyncssh.HostKeyNotVerifiable as problem:
        if options.get("known_hosts"):
            problem.reason = (
                f"the key of {options['host']}:{options['port']} is not the one of the credential, so no "
                "password was sent. Ask the operator of the server whether its key has changed "
                "before you replace `host_key` (or `known_hosts`)"
            )
        else:
            problem.reason = (
                "the key of the server is not known; put it into `host_key` of the credential (ssh-keyscan shows it)"
            )
        raise
    except OSError as problem:  # also of a name that is not known, and of a timeout
        reason = problem.strerror or str(problem) or "no answer in time"
        raise ConnectionError(None, f"cannot connect to {options['host']}:{options['port']}: {reason}") from problem
    async with connection, connection.start_sftp_client() as client:
        try:
            yield client
        except asyncssh.SFTPError as problem:
            if path and path not in problem.reason:
                problem.reason = f"{path}: {problem.reason}"
            raise


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    if not given.get("host"):
        raise BadAuth("the credential of an SFTP server requires `host`")
    address = str(given["host"]), int(given.get("port") or 22)
    options: dict[str, Any] = {
        "host": address[0],
        "port": address[1],
        "username": str(given.get("user") or ""),
        "client_keys": None,  # neither keys of the user that runs the worker nor an agent
        "agent_path": None,
        "config": None,
        "keepalive_interval": ALIVE_SECONDS,  # three requests without an answer are a lost connection
    }
    if given.get("password") is not None:
        options["password"] = str(given["password"])
    if given.get("private_key"):
        try:
            key = asyncssh.import_private_key(str(given["private_key"]), given.get("passphrase"))
        except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError) as wrong:
            raise BadAuth(
                f"private_key of the credential cannot be read: {wrong}; it is the text of a key file"
            ) from None
        options["client_keys"] = [key]
    return options | _host_keys(given, address)


def _host_keys(given: Mapping[str, Any], address: tuple[str, int]) -> dict[str, Any]:
    """How the server's key is verified: `host_key`, `known_hosts`, else the known hosts of the worker's user."""
    if given.get("host_key"):
        host, port = address
        name = host if port == 22 else f"[{host}]:{port}"
        keys = [_public_key(line) for line in str(given["host_key"]).splitlines() if line.strip() and line[0] != "#"]
        return {"known_hosts": asyncssh.import_known_hosts("".join(f"{name} {key}\n" for key in keys))}
    if given.get("known_hosts"):
        try:
            return {"known_hosts": asyncssh.import_known_hosts(str(given["known_hosts"]))}
        except ValueError:
            raise BadAuth(
                "`known_hosts` of the credential must be the text of such a file: lines of host and key"
            ) from None
    return {"known_hosts": None} if not flag(given, "verify", True) else {}


def _public_key(line: str) -> str:
    """The key of a line, also with the name of the host before it."""
    words = line.split()
    for key in (" ".join(words[:2]), " ".join(words[1:3])):
        try:
            asyncssh.import_public_key(key)
        except asyncssh.KeyImportError:
            continue
        return key
    raise BadAuth(
        "`host_key` of the credential is not a public key, such as `ssh-ed25519 AAAA...` (ssh-keyscan shows it)"
    )


def explain(failure: Exception) -> ErrorInfo | None:
    """The error for an exception of the driver; None for other exceptions."""
    if isinstance(failure, asyncssh.SFTPNoSuchFile | asyncssh.SFTPNoSuchPath):
        return error_info("not_found", f"sftp: {failure.reason}")
    if isinstance(failure, asyncssh.SFTPPermissionDenied):
        return error_info("storage.access", f"sftp: {failure.reason}")
    if isinstance(failure, asyncssh.SFTPNoSpaceOnFilesystem | asyncssh.SFTPQuotaExceeded):
        return error_info("storage.quota", f"sftp: {failure.reason}")
    if isinstance(failure, asyncssh.SFTPConnectionLost | asyncssh.SFTPNoConnection):
        return error_info("connection", f"sftp: {failure.reason}")
    if isinstance(
        failure,
        asyncssh.SFTPFileIsADirectory
        | asyncssh.SFTPNotADirectory
        | asyncssh.SFTPFileAlreadyExists
        | asyncssh.SFTPDirNotEmpty
        | asyncssh.SFTPInvalidFilename,
    ):
        return error_info("client_error", f"sftp: {failure.reason}")
    if isinstance(failure, asyncssh.SFTPError):
        return error_info("server_error", f"sftp: {failure.reason}")
    if isinstance(failure, asyncssh.HostKeyNotVerifiable | asyncssh.PermissionDenied):
        return error_info("auth", f"sftp: {failure.reason}")
    if isinstance(failure, asyncssh.Error):
        return error_info("connection", f"sftp: {failure.reason}")
    if isinstance(failure, OSError):
        return error_info("connection", f"sftp: {failure.strerror or failure}")
    return None
