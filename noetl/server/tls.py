"""TLS of the server, and the proxies it trusts.

The files of the certificate are read again when they change, so that a renewed certificate needs no restart. A file
that cannot be used is logged, and the previous certificate stays in use.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path
from typing import Any

from noetl.errors import RequestRefused
from noetl.settings import Settings

log = logging.getLogger("noetl.server")

CHECK_SECONDS = 2.0  # how often the files of the certificate are looked at


def uvicorn_options(settings: Settings) -> dict[str, Any]:
    """Options of uvicorn for TLS and for the headers of proxies; RequestRefused if the certificate cannot be used."""
    proxies = settings.server_trusted_proxies
    options: dict[str, Any] = {"proxy_headers": bool(proxies), "forwarded_allow_ips": list(proxies)}
    certificate, key = settings.server_tls_cert, settings.server_tls_key
    if certificate is None:
        if key is not None:
            raise RequestRefused("server.tls_key is set, but server.tls_cert is not: set both, or only server.tls_cert")
        return options
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as problem:
        files = f"{certificate}" if key is None else f"{certificate} with the key {key}"
        reason = getattr(problem, "strerror", None) or problem
        raise RequestRefused(f"the certificate {files} cannot be used (server.tls_cert): {reason}") from None
    return {**options, "ssl_certfile": certificate, "ssl_keyfile": key}


async def watch_certificate(context: ssl.SSLContext, certificate: Path, key: Path | None) -> None:
    """Load the certificate again whenever one of its files has changed."""
    files = [certificate] if key is None else [certificate, key]
    known = _state(files)
    while True:
        await asyncio.sleep(CHECK_SECONDS)
        found = _state(files)
        if found == known:
            continue
        known = found
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
                certificate, key
            )  # not half of it into the one in use
            context.load_cert_chain(certificate, key)
        except (OSError, ssl.SSLError) as problem:
            log.error("the new certificate %s cannot be used, the previous one stays in use: %s", certificate, problem)
        else:
            log.info("the certificate %s was loaded again", certificate)


def _state(files: list[Path]) -> list[tuple[int, int, int] | None]:
    return [_file_state(file) for file in files]


def _file_state(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
