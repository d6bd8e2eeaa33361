"""NATS: one shared connection per server and credential, and objects streamed in bounded memory.

Objects follow the layout of NATS's own object store (stream `OBJ_<bucket>`, chunks below
`$O.<bucket>.C.`, one message of metadata below `$O.<bucket>.M.`), so the `nats` command reads them.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from datetime import UTC, datetime
from errno import ECONNRESET
from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

from noetl.connections.address_gate import Allows, allowed_addresses
from noetl.connections.auth import renamed
from noetl.core.model.outcome import ErrorInfo, error_info
from noetl.runtime.resources import per_loop

PREFIXES = ("nats_",)
CHUNK = 128 * 1024
WINDOW = 16  # chunks in flight
_OPTIONS = {
    "user": ("user", "username"),
    "password": ("password",),
    "token": ("token",),
    "user_credentials": ("user_credentials", "creds", "creds_file"),
    "nkeys_seed_str": ("nkey", "nkeys_seed_str", "seed"),
}


class Connections:
    """This loop's connections by server and credential; each is opened once and shared."""

    def __init__(self) -> None:
        self._open: dict[str, Any] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def get(
        self, fields: Mapping[str, Any], *, timeout: float | None = None, allows: Allows | None = None
    ) -> Any:
        """A connected client."""
        key = "checked " if allows else ""
        key += repr(sorted((name, repr(value)) for name, value in fields.items()))
        async with self._locks.setdefault(key, asyncio.Lock()):
            client = self._open.get(key)
            if client is None or client.is_closed:
                client = self._open[key] = await connect(fields, timeout=timeout, allows=allows)
            return client

    async def close(self) -> None:
        """Close them all."""
        for client in self._open.values():
            if not client.is_closed:
                await client.close()
        self._open.clear()


async def shared_client(
    fields: Mapping[str, Any], *, timeout: float | None = None, allows: Allows | None = None
) -> Any:
    """The loop's connection for a credential's fields."""
    return await per_loop(("nats",), Connections).get(fields, timeout=timeout, allows=allows)


async def connect(fields: Mapping[str, Any], *, timeout: float | None = None, allows: Allows | None = None) -> Any:
    """A new connection; the caller closes it. `allows` checks the addresses of the servers."""
    options: dict[str, Any] = {name: str(value) for name, value in renamed(fields, _OPTIONS).items()}
    url = fields.get("dsn") or fields.get("url") or fields.get("servers")
    if not url and fields.get("host"):
        url = f"nats://{fields['host']}:{fields.get('port', 4222)}"
    if not url:
        raise ValueError("the connection has no url: give `auth` a credential, a nats:// URL, or `url`")
    servers = [server.strip() for server in url.split(",")] if isinstance(url, str) else list(url)
    if allows is not None:
        servers, more = await _checked(servers, allows)
        options |= more
    options |= {"connect_timeout": int(timeout or 5) or 1, "reconnect_time_wait": 0, "name": "noetl"}
    try:
        return await _connected(servers, options)
    except ConnectionRefusedError:
        raise
    except ConnectionError:
        # A server that refuses a credential closes the connection at once, and its error message may be lost. In
        # verbose mode it acknowledges each command, so the message is read before anything else is sent.
        await (await _connected(servers, {**options, "verbose": True})).close()
        return await _connected(servers, options)


async def _checked(servers: list[str], allows: Allows) -> tuple[list[str], dict[str, Any]]:
    """The servers by their allowed addresses, and options of the client.

    The client does not reconnect: it would also try addresses that a server names."""
    found: list[str] = []
    options: dict[str, Any] = {"allow_reconnect": False}
    for server in servers:
        parts = urlsplit(server if "://" in server else f"nats://{server}")
        name = parts.hostname or ""
        addresses = await allowed_addresses(name, allows)
        user, at, place = parts.netloc.rpartition("@")
        port = place.rpartition(":")[2] if re.search(r":\d+$", place) else "4222"
        if parts.scheme in ("ws", "wss") or not addresses:
            await allowed_addresses(name, allows, every=True)
            found.append(server)
            continue
        found += [
            urlunsplit(parts._replace(netloc=f"{user}{at}{f'[{each}]' if ':' in each else each}:{port}"))
            for each in addresses
        ]
        if addresses != [name]:
            options["tls_hostname"] = name
    return found, options


async def _connected(servers: list[str], options: Mapping[str, Any]) -> Any:
    from nats.errors import NoServersError

    from noetl.connections.nats_client import NatsClient

    problems: list[Exception] = []

    async def note(problem: Exception) -> None:
        problems.append(problem)  # raised below

    client = NatsClient()
    try:
        await client.connect(servers, max_reconnect_attempts=2, error_cb=note, **options)
    except NoServersError as failure:
        specific = [problem for problem in problems if not isinstance(problem, OSError)]
        raise (specific or problems or [failure])[-1] from failure
    if not client.is_connected:  # the server closed the connection, which the client does not report
        await client.close()
        raise ConnectionResetError(ECONNRESET, "the server closed the connection")
    return client


class ObjectInfo(NamedTuple):
    """What is known of a stored object."""

    name: str
    nuid: str
    size: int
    chunks: int
    digest: str
    modified: str
    headers: dict[str, Any]


async def buckets_described(client: Any, description: str) -> list[str]:
    """The object buckets of the server with that description."""
    found, offset = [], 0
    while infos := await client.jetstream(timeout=30).streams_info(offset=offset):
        offset += len(infos)
        for info in infos:
            name, said = info.config.name or "", info.config.description
            if name.startswith("OBJ_") and said == description:
                found.append(name.removeprefix("OBJ_"))
    return found


class ObjectBucket:
    """One bucket of a server's object store."""

    def __init__(self, client: Any, bucket: str) -> None:
        self.bucket = bucket
        self.stream = f"OBJ_{bucket}"
        self._js = client.jetstream(timeout=30)

    async def ensure(self, description: str | None = None) -> None:
        """Create the bucket if it does not exist."""
        from nats.js.api import StorageType
        from nats.js.errors import NotFoundError

        try:
            await self._js.stream_info(self.stream)
        except NotFoundError:
            await self._js.create_object_store(self.bucket, storage=StorageType.FILE, description=description)

    async def put(
        self, name: str, blocks: AsyncIterator[bytes], *, nuid: str | None = None, headers: dict[str, Any] | None = None
    ) -> ObjectInfo:
        """Write an object from a stream; an existing one of that name is replaced when the new one is complete."""
        former = await self.find(name)
        nuid = nuid or secrets.token_hex(11)
        subject = self._chunks(nuid)
        digest = hashlib.sha256()
        size = chunks = 0
        waiting: list[asyncio.Task[Any]] = []
        try:
            async for chunk in _cut(blocks, CHUNK):
                digest.update(chunk)
                size += len(chunk)
                chunks += 1
                waiting.append(asyncio.create_task(self._js.publish(subject, chunk, timeout=30)))
                # The connection preserves the order, once the first request has set up the reply subscription.
                if len(waiting) >= WINDOW or chunks == 1:
                    await asyncio.gather(*waiting)
                    waiting = []
            await asyncio.gather(*waiting)
            info = ObjectInfo(
                name, nuid, size, chunks,
                "SHA-256=" + base64.urlsafe_b64encode(digest.digest()).decode(),
                datetime.now(UTC).isoformat(), headers or {},
            )  # fmt: skip
            await self._js.publish(
                self._meta(name), json.dumps(self._as_json(info)).encode(), headers={"Nats-Rollup": "sub"}, timeout=30
            )
        except BaseException:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            await self._js.purge_stream(self.stream, subject=subject)
            raise
        if former is not None:
            await self._js.purge_stream(self.stream, subject=self._chunks(former.nuid))
        return info

    async def find(self, name: str) -> ObjectInfo | None:
        """An object's metadata; None when there is no such object."""
        from nats.js.errors import NotFoundError

        try:
            message = await self._js.get_msg(self.stream, subject=self._meta(name), direct=True)
        except NotFoundError:
            return None
        known = json.loads(message.data)
        if known.get("deleted"):
            return None
        return ObjectInfo(
            known["name"], known["nuid"], known.get("size", 0), known.get("chunks", 0), known.get("digest", ""),
            known.get("mtime", ""), known.get("headers") or {},
        )  # fmt: skip

    async def read(self, info: ObjectInfo) -> AsyncGenerator[bytes, None]:
        """Yield the chunks of an object, each fetched on demand."""
        from nats.js.errors import NotFoundError

        sequence = 1
        for _ in range(info.chunks):
            try:
                message = await self._js.get_msg(
                    self.stream, seq=sequence, subject=self._chunks(info.nuid), direct=True, next=True
                )
            except NotFoundError:
                return  # chunks are missing; the caller checks the number of bytes
            sequence = message.seq + 1
            yield message.data or b""

    async def delete(self, name: str) -> bool:
        """Delete an object, its chunks and its metadata; return False if there was none."""
        info = await self.find(name)
        if info is None:
            return False
        await self._js.purge_stream(self.stream, subject=self._meta(name))
        await self._js.purge_stream(self.stream, subject=self._chunks(info.nuid))
        return True

    async def names(self) -> list[str]:
        """The names of all objects."""
        info = await self._js.stream_info(self.stream, subjects_filter=f"$O.{self.bucket}.M.>")
        subjects = info.state.subjects or {}
        return sorted(base64.urlsafe_b64decode(subject.rpartition(".")[2]).decode() for subject in subjects)

    async def drop_abandoned(self, keep: set[str], before: float) -> None:
        """Delete chunks that belong to no object (`keep` has the objects' nuids) and are older than `before`."""
        info = await self._js.stream_info(self.stream, subjects_filter=f"$O.{self.bucket}.C.>")
        for subject in info.state.subjects or {}:
            if subject.rpartition(".")[2] in keep:
                continue
            message = await self._js.get_msg(self.stream, subject=subject)
            if message.time is not None and message.time.timestamp() < before:
                await self._js.purge_stream(self.stream, subject=subject)

    def _chunks(self, nuid: str) -> str:
        return f"$O.{self.bucket}.C.{nuid}"

    def _meta(self, name: str) -> str:
        return f"$O.{self.bucket}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"

    def _as_json(self, info: ObjectInfo) -> dict[str, Any]:
        return {
            "name": info.name, "bucket": self.bucket, "nuid": info.nuid, "size": info.size, "chunks": info.chunks,
            "digest": info.digest, "mtime": info.modified,
            "headers": {key: [str(value)] for key, value in info.headers.items()},
            "options": {"max_chunk_size": CHUNK}, "deleted": False,
        }  # fmt: skip


async def _cut(blocks: AsyncIterator[bytes], size: int) -> AsyncGenerator[bytes, None]:
    pending = bytearray()
    async for block in blocks:
        pending += block
        while len(pending) >= size:
            yield bytes(pending[:size])
            del pending[:size]
    if pending:
        yield bytes(pending)


def to_error_info(failure: Exception, what: str, named: str = "") -> ErrorInfo:
    """Convert an exception of the driver to one of the error kinds; `named` is the requested object."""
    from nats import errors
    from nats.js import errors as js

    text = str(failure)
    refused = "authorization" in text.lower() or "permissions" in text.lower()
    if refused or isinstance(failure, errors.AuthorizationError):
        return error_info("auth", f"{what}: the server refuses the credential ({text})")
    if isinstance(failure, js.NotFoundError):
        return error_info("not_found", f"{what}: not found" + (f" ({named})" if named else ""))
    if isinstance(failure, errors.NoRespondersError | js.NoStreamResponseError):
        return error_info("not_found", f"{what}: no responders on that subject")
    if isinstance(failure, errors.TimeoutError | TimeoutError):
        return error_info("timeout", f"{what}: timed out")
    if isinstance(failure, errors.MaxPayloadError):
        return error_info("limit", f"{what}: the message is larger than the server allows")
    if isinstance(failure, js.KeyWrongLastSequenceError):
        return error_info("client_error", f"{what}: the key already exists, or was changed by another client")
    if isinstance(failure, js.ServiceUnavailableError | js.ServerError):
        full = "insufficient" in text or "maximum" in text
        return error_info("storage.quota" if full else "server_error", f"{what}: {text}")
    if isinstance(
        failure, js.APIError | js.InvalidBucketNameError | js.InvalidKeyError | errors.BadSubjectError | ValueError
    ):
        return error_info("client_error", f"{what}: {text or type(failure).__name__}")
    if isinstance(failure, errors.Error | OSError):
        return error_info("connection", f"{what}: {text or type(failure).__name__}")
    return error_info("unknown", f"{what}: {text}")
