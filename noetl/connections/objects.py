"""Object stores and folders with one interface: S3, Google Cloud Storage, Azure, files.

    s3://bucket/key   gs://bucket/key   az://container/key   file:///folder/key   or a plain path

`ObjectLocation` is a parsed address; `shared_store` opens the store of a location with a credential's fields.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from noetl.connections.address_gate import LOOPBACK, Allows, check_urls
from noetl.connections.auth import BadAuth, renamed
from noetl.connections.gate_proxy import DENIED, gate_proxy
from noetl.core.model.outcome import ErrorInfo, error_info
from noetl.core.model.tool import Timeout
from noetl.runtime.resources import per_loop

PREFIXES = ("aws_", "s3_", "gcs_", "google_", "azure_storage_", "azure_")
PART = 8 << 20
_SCHEMES = {
    "s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs",
    "az": "az", "azure": "az", "abfs": "az", "abfss": "az", "adl": "az",
    "file": "file", "memory": "memory",
}  # fmt: skip
_S3 = {
    "access_key_id": ("access_key_id", "access_key", "key_id", "user", "username"),
    "secret_access_key": ("secret_access_key", "secret_key", "secret", "password"),
    "session_token": ("session_token", "token"),
    "region": ("region", "default_region", "region_name"),
    "endpoint": ("endpoint", "endpoint_url", "url", "host"),
    "virtual_hosted_style_request": ("virtual_hosted_style_request",),
    "skip_signature": ("skip_signature", "anonymous"),
}
_GCS = {
    "service_account_key": ("service_account_key", "service_account", "credentials_json"),
    "service_account_path": ("service_account_path", "application_credentials", "credentials_file"),
    "skip_signature": ("skip_signature", "anonymous"),
}
_AZURE = {
    "account_name": ("account_name", "account", "user"),
    "account_key": ("account_key", "access_key", "key", "password"),
    "sas_key": ("sas_key", "sas_token", "sas"),
    "client_id": ("client_id",),
    "client_secret": ("client_secret",),
    "tenant_id": ("tenant_id", "tenant"),
    "endpoint": ("endpoint", "endpoint_url"),
    "use_emulator": ("use_emulator",),
    "skip_signature": ("skip_signature", "anonymous"),
}


class ObjectLocation(NamedTuple):
    """A parsed address: the kind of store, the bucket (or folder), the key."""

    scheme: str
    bucket: str
    key: str
    account: str | None = None

    @property
    def url(self) -> str:
        """The address; a key that contains `%20` itself is written `%2520`."""
        key = re.sub("%(?=[0-9A-Fa-f]{2})", "%25", self.key)
        return f"{self.scheme}://{self.bucket}/{key}"


def parse_location(address: str, *, scheme: str | None = None, bucket: str | None = None) -> ObjectLocation:
    """Parse an address; if `scheme` and `bucket` are given, it is a key.

    Without a scheme, `bucket/key` is a file, unless `scheme` is given."""
    found = re.match(r"([A-Za-z][\w+.-]*)://", address)
    if found:
        named = _SCHEMES.get(found[1].lower())
        if named is None:
            raise ValueError(f"{found[1]}:// is not a supported object store: use s3://, gs://, az:// or file://")
        parts = urlsplit(address)
        rest = re.sub(r"^[^/?#]*", "", address[found.end() :])  # `?` and `#` are characters of a key
        path = unquote(rest).lstrip("/")
        if named == "file":
            folder, _, name = ("/" + unquote(parts.netloc + rest).lstrip("/")).rpartition("/")
            return ObjectLocation("file", folder, name)
        container, _, account = parts.netloc.partition("@")
        return ObjectLocation(named, container, path, account.partition(".")[0] or None)
    named = _SCHEMES.get((scheme or "file").lower())
    if named is None:
        raise ValueError(f"{scheme!r} is not a supported object store: use s3, gcs, azure or file")
    if named == "file":
        if bucket and not os.path.normpath(Path(bucket, address)).startswith(
            os.path.normpath(bucket).rstrip("/") + "/"
        ):
            raise ValueError(f"a key in {bucket} must not lead out of it")
        folder, _, name = str(Path(bucket or "", address)).rpartition("/")
        return ObjectLocation("file", folder or ".", name)
    if bucket:
        return ObjectLocation(named, bucket, address.lstrip("/"))
    container, _, key = address.lstrip("/").partition("/")
    return ObjectLocation(named, container, key)


def shared_store(
    place: ObjectLocation,
    fields: Mapping[str, Any],
    *,
    connect: float | None = None,
    total: float | None = None,
    proxy: str | None = None,
) -> Any:
    """Return the store of a location; calls with the same location and credential share connections."""
    config = config_of(place, fields)
    key = ("objects", place.scheme, place.bucket, place.account, repr(sorted(config.items())), connect, total, proxy)
    return per_loop(key, lambda: new_store(place, config, connect=connect, total=total, proxy=proxy))


async def checked_store(
    place: ObjectLocation,
    fields: Mapping[str, Any],
    address_check: Callable[..., Allows | None],
    timeout: Timeout | None = None,
) -> Any:
    """`shared_store` after `check_endpoint`; all connections to a checked endpoint go through the gate's proxy."""
    allows = await check_endpoint(place, fields, address_check)
    proxy = await gate_proxy(allows) if allows is not None else None
    limits = timeout or Timeout()
    return shared_store(place, fields, connect=limits.connect, total=limits.total, proxy=proxy)


async def check_endpoint(
    place: ObjectLocation, fields: Mapping[str, Any], address_check: Callable[..., Allows | None]
) -> Allows | None:
    """Apply the network policy to the addresses that a store is reached at; AddressDenied names a denied one.

    Returns the policy that has to be applied to connections. Without an endpoint the driver builds the name of the
    provider's server from account, region and bucket, which therefore may have no characters of addresses."""
    if place.scheme not in ("s3", "gs", "az"):
        return None
    config = config_of(place, fields)
    urls = [str(config["endpoint"])] if config.get("endpoint") else []
    if str(config.get("use_emulator", "")).lower() in ("true", "1", "yes", "on"):
        urls.append(LOOPBACK)
    if place.scheme == "gs":
        urls += await asyncio.to_thread(_urls_of_key, config)
    allows = address_check(*urls) if urls else None
    if allows is not None:
        await check_urls(urls, allows)
    for name in ("region", "account_name"):
        if re.search(r"[^\w-]", str(config.get(name, "")), re.ASCII):
            raise BadAuth(f"{name} {config[name]!r} may have letters, digits and dashes only")
    if re.search(r"[^\w.-]", place.bucket, re.ASCII):
        raise BadAuth(f"{place.bucket!r} is not the name of a bucket")
    return allows


def _urls_of_key(config: Mapping[str, Any]) -> list[str]:
    """The addresses that a service account's key sends requests to."""
    text = str(config.get("service_account_key") or "{}")
    try:
        if config.get("service_account_path"):
            text = Path(str(config["service_account_path"])).read_text()
        key = json.loads(text)
    except (ValueError, OSError):
        return []  # the driver's error says what is wrong with it
    names = ("gcs_base_url", "token_uri")
    return [str(key[name]) for name in names if isinstance(key, Mapping) and key.get(name)]


def config_of(place: ObjectLocation, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The driver's own names for a credential's fields."""
    wanted = {"s3": _S3, "gs": _GCS, "az": _AZURE}.get(place.scheme, {})
    config = renamed(fields, wanted)
    if place.scheme == "az" and place.account:
        config["account_name"] = place.account
    if isinstance(config.get("service_account_key"), Mapping):
        config["service_account_key"] = json.dumps(dict(config["service_account_key"]))
    if place.scheme == "gs" and not config and fields.get("private_key"):
        config["service_account_key"] = json.dumps(dict(fields))  # the credential is the key file itself
    return config


def new_store(
    place: ObjectLocation,
    config: Mapping[str, Any],
    *,
    connect: float | None = None,
    total: float | None = None,
    proxy: str | None = None,
) -> Any:
    """Open a store; nothing is sent until it is used."""
    from obstore.store import AzureStore, GCSStore, LocalStore, MemoryStore, S3Store

    if place.scheme == "file":
        return LocalStore(place.bucket, mkdir=True)
    if place.scheme == "memory":
        return MemoryStore()
    if not place.bucket:
        raise ValueError(f"{place.url} has no bucket")
    options: dict[str, Any] = {
        "client_options": {
            "allow_http": str(config.get("endpoint", "")).startswith("http://"),
            "connect_timeout": timedelta(seconds=connect or 10),
            "timeout": timedelta(seconds=total or 300),
            "user_agent": "noetl",
            **({"proxy_url": proxy} if proxy else {}),
        },
        # Retries are the playbook's policy; this only covers a lost packet.
        "retry_config": {"max_retries": 2, "retry_timeout": timedelta(seconds=min(total or 30, 30))},
    }
    if place.scheme == "s3":
        return S3Store(place.bucket, config={"region": "us-east-1", **config}, **options)  # type: ignore[arg-type]
    if place.scheme == "gs":
        return GCSStore(place.bucket, config=dict(config), **options)  # type: ignore[arg-type]
    return AzureStore(place.bucket, config=dict(config), **options)  # type: ignore[arg-type]


async def upload(
    store: Any, key: str, blocks: AsyncIterator[bytes], *, content_type: str | None = None, create: bool = False
) -> dict[str, Any]:
    """Write an object from a stream, atomically.

    A short object is one request; a longer one is sent in parts, of which a few are in memory."""
    import obstore

    options: dict[str, Any] = {"attributes": {"Content-Type": content_type}} if content_type else {}
    if not hasattr(store, "config") or type(store).__name__ in ("LocalStore", "MemoryStore"):
        options = {}  # files have no attributes
    buffered: list[bytes] = []
    size = 0
    async for block in blocks:
        buffered.append(bytes(block))
        size += len(block)
        if size > PART:
            break
    else:
        return dict(
            await obstore.put_async(store, key, b"".join(buffered), mode="create" if create else "overwrite", **options)
        )
    if create and await exists(store, key):
        raise FileExistsError(key)

    async def parts() -> AsyncGenerator[bytes, None]:
        while buffered:
            yield buffered.pop(0)
        async for block in blocks:
            yield bytes(block)

    return dict(await obstore.put_async(store, key, parts(), chunk_size=PART, max_concurrency=3, **options))


async def download(
    store: Any, key: str, *, start: int = 0, count: int | None = None, chunk: int = 1 << 20
) -> AsyncGenerator[bytes, None]:
    """Stream an object, or a range of it.

    The driver's timeout is for a whole request, and the reader may take longer: an interrupted download is resumed at
    its position, as long as every request returns data and the object is unchanged."""
    import obstore

    if count is not None and count <= 0:
        return
    end = None if count is None else start + count
    same: dict[str, Any] = {}
    while True:
        began = start
        options: Any = dict(same)
        if end is not None:
            options["range"] = (start, end)
        elif start:
            options["range"] = {"offset": start}
        try:
            result = await (
                obstore.get_async(store, key, options=options) if options else obstore.get_async(store, key)
            )
            size = result.meta["size"]
            async for piece in result.stream(min_chunk_size=chunk):
                start += len(piece)
                yield bytes(piece)
            return
        except errors() as failure:
            if start == began or to_error_info(failure, key).kind not in ("timeout", "connection"):
                raise
        if start >= (size if end is None else min(end, size)):
            return
        if result.meta.get("e_tag"):
            same = {"if_match": result.meta["e_tag"]}


async def exists(store: Any, key: str) -> bool:
    """Whether there is an object of this key."""
    import obstore

    try:
        await obstore.head_async(store, key)
    except FileNotFoundError:
        return False
    return True


class ObjectPayload:
    """An object as a payload of which parts can be read."""

    def __init__(self, store: Any, key: str, known: Mapping[str, Any]) -> None:
        self._store = store
        self._key = key
        self.known = dict(known)
        self.size: int = known["size"]
        self.content_type: str | None = known["content_type"]

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """All of it."""
        async for chunk in download(self._store, self._key):
            yield chunk

    async def read(self, start: int, count: int) -> bytes:
        """A range of it."""
        return b"".join([chunk async for chunk in download(self._store, self._key, start=start, count=count)])


async def payload_of(store: Any, key: str) -> ObjectPayload:
    """Return an object with its metadata."""
    import obstore

    result = await obstore.get_async(store, key, options={"head": True})
    kind = result.attributes.get("Content-Type")
    known = {
        "size": result.meta["size"],
        "etag": result.meta.get("e_tag"),
        "last_modified": result.meta["last_modified"].isoformat(),
        "content_type": None if kind in (None, "application/octet-stream", "binary/octet-stream") else str(kind),
    }
    return ObjectPayload(store, key, known)


def errors() -> tuple[type[Exception], ...]:
    """What the driver raises."""
    from obstore.exceptions import BaseError

    return (BaseError, OSError)


def to_error_info(failure: Exception, what: str) -> ErrorInfo:
    """Convert an exception of the driver to one of the error kinds."""
    from obstore import exceptions

    text = str(failure)
    status = re.search(
        r"status(?: code)?[ :]+(\d{3})|\b(40[0-9]|50[0-9])\b (?:Forbidden|Unauthorized|Service|Internal|Bad)", text
    )
    code = int(next(group for group in status.groups() if group)) if status else None
    if code == DENIED:
        return error_info("client_error", f"{what}: the network policy does not allow the address of a redirect")
    if isinstance(failure, FileNotFoundError | exceptions.NotFoundError) or re.search(r"NoSuch(Bucket|Key)", text):
        return error_info("not_found", f"{what}: {getattr(failure, 'strerror', None) or 'object or bucket not found'}")
    if isinstance(failure, FileExistsError | exceptions.AlreadyExistsError | exceptions.PreconditionError):
        return error_info("client_error", f"{what}: the object already exists, and `create` is set")
    if isinstance(failure, exceptions.UnauthenticatedError) or code == 401 or re.search(r"Invalid ?Access ?Key", text):
        return error_info("auth", f"{what}: the store rejected the credential")
    if isinstance(failure, PermissionError | exceptions.PermissionDeniedError) or code == 403:
        return error_info("storage.access", f"{what}: access denied")
    if re.search(r"timed out|Timeout", text):
        return error_info("timeout", f"{what}: the store timed out")
    if re.search(r"No space left|quota|QuotaExceeded|EntityTooLarge", text, re.IGNORECASE):
        return error_info("storage.quota", f"{what}: the store is full or the object too large")
    if code is not None and code >= 500:
        return error_info("server_error", f"{what}: the store returned HTTP {code}")
    if re.search(r"error sending request|connect|connection|dns|Connection|reset|HTTP error", text):
        return error_info("connection", f"{what}: the store cannot be reached")
    if re.search(r"Is a directory \(os error|Is a directory: ", text):
        return error_info("client_error", f"{what} is a folder")
    if re.search(r"(Not a directory|File exists) \(os error", text):
        return error_info("client_error", f"{what}: a part of the path is a file")
    if isinstance(failure, NotADirectoryError | IsADirectoryError | exceptions.InvalidPathError | ValueError):
        return error_info("client_error", f"{what}: {_short(text)}")
    return error_info("unknown", f"{what}: {_short(text)}")


def _short(text: str) -> str:
    """The driver's message without its debug output, which may contain the configuration."""
    return text.partition("\n\nDebug source:")[0].strip()[:500]
