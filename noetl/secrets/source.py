"""The request that a keychain kind resolves, and the functions that kinds share.

Invariant: an error message never contains the value of a secret.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, field

from noetl.core.model.tool import Timeout
from noetl.errors import NoetlError, SecretUnavailable

MAX_BYTES = 4 << 20
T = TypeVar("T")
Reply = tuple[int, Mapping[str, Any]]  # the status and the JSON object of a response
TIMEOUT = Timeout(connect=10, read=20, total=30)


class SecretRequest(Struct, frozen=True):
    """One keychain entry with rendered fields, and its environment.

    `other` resolves another entry or a stored credential by name. `allows_address`,
    `allows_variable` and `allows_file` are the policy of the installation: a shared server does not expose
    everything that its own process can read."""

    name: str
    fields: Mapping[str, Any]
    environment: Mapping[str, str]
    folder: str
    other: Callable[[str], Awaitable[Any]]
    is_entry: Callable[[str], bool]
    stored: Callable[[str], Awaitable[Any]]
    allows_address: Callable[[str], bool] | None = None
    allows_variable: Callable[[str], bool] = field(default=lambda name: True)
    allows_file: Callable[[str], bool] = field(default=lambda path: True)

    def unavailable(self, reason: str, kind: str = "auth") -> SecretUnavailable:
        """The error for an entry without a value."""
        return SecretUnavailable({self.name: reason}, kind=kind)

    def text(self, field: str, default: str | None = None) -> str:
        """A required text field."""
        value = self.fields.get(field, default)
        if value is None or value == "":
            raise self.unavailable(f"`{field}` is missing", "schema")
        return str(value)

    async def dereference(self, text: str) -> str:
        """The text itself, or the single value of the entry that it names."""
        if not self.is_entry(text):
            return text
        value = await self.other(text)
        if isinstance(value, Mapping):
            only = [each for each in value.values() if isinstance(each, str)]
            picked = value.get("value") or value.get("token") or (only[0] if len(only) == 1 else None)
            if picked is None:
                raise self.unavailable(
                    f'the entry "{text}" has several values: {", ".join(map(str, value))}; one is needed'
                )
            return str(picked)
        return str(value)

    async def mapping(self, field: str) -> dict[str, Any]:
        """A field that is a mapping, or the name of an entry with one; its values may name entries too."""
        given = self.fields.get(field)
        if given is None:
            return {}
        named = given.get("credential") if isinstance(given, Mapping) and len(given) == 1 else given
        if isinstance(named, str):
            found = await self.other(named)
            return dict(found) if isinstance(found, Mapping) else {"token": found, "value": found}
        if not isinstance(given, Mapping):
            raise self.unavailable(f"`{field}` must be a mapping or the name of an entry", "schema")
        return {
            str(key): await self.dereference(value) if isinstance(value, str) else value for key, value in given.items()
        }


async def send(
    request: SecretRequest,
    method: str,
    url: str,
    headers: Mapping[str, str],
    *,
    body: bytes | None = None,
    service: str,
    trusted: bool = False,
) -> Reply:
    """Send one HTTP request to a secret manager; SecretUnavailable if there is no response.

    A `trusted` address is configured in the installation and may be private; an address that a playbook names is
    subject to the network policy."""
    from noetl.connections.http.client import HttpFailure, Request, exchange

    call = Request(
        method=method,
        url=url,
        headers=dict(headers),
        body=(lambda: body) if body is not None else None,
        timeout=TIMEOUT,
        redirects=0,
    )
    data = bytearray()
    try:
        async with exchange(call, None if trusted else request.allows_address) as response:
            async for chunk in response.chunks():
                data += chunk
                if len(data) > MAX_BYTES:
                    raise request.unavailable(f"the response of {service} is larger than {MAX_BYTES:,} bytes")
    except HttpFailure as failure:
        raise request.unavailable(f"the call to {service} failed: {failure.message}", failure.kind) from failure
    try:
        reply = msgspec.json.decode(data)
    except msgspec.DecodeError:
        reply = None
    return response.status, reply if isinstance(reply, Mapping) else {}


async def call_library(request: SecretRequest, extra: str, call: Callable[[], T]) -> T:
    """Run a blocking call of a provider's library in a thread; a failure of the library is SecretUnavailable."""
    from noetl.runtime.threads import in_thread

    try:
        return await in_thread(call)
    except NoetlError:
        raise
    except ImportError as absent:
        raise request.unavailable(
            f"provider {extra} needs a library that is not installed: pip install 'noetl-engine[{extra}]'", "schema"
        ) from absent
    except Exception as failure:
        # The libraries have no common base class, and their messages may have several lines.
        reason = str(failure.args[0] if failure.args else failure).strip().partition("\n")[0]
        raise request.unavailable(f"cannot get {extra} credentials: {reason or type(failure).__name__}") from failure


def check_address(request: SecretRequest, url: str, hosts: str, service: str, variable: str) -> None:
    """Raise if a playbook's `url` is not an address of the service: it must not receive our own credentials."""
    from yarl import URL

    try:
        parts = URL(url)
    except ValueError:
        raise request.unavailable(f"`url` is not a URL: {url}", "schema") from None
    if parts.scheme != "https" or not re.fullmatch(hosts, parts.host or ""):
        raise request.unavailable(
            f"{url} is not an address of {service}, so the credentials of this installation are not sent to it: "
            f"give `auth`, or set {variable} instead of `url`"
        )


def one_or_all(fields: Any) -> Any:
    """The value of a mapping whose only field is `value`; any other mapping as a dict."""
    if isinstance(fields, Mapping) and set(fields) == {"value"}:
        return fields["value"]
    return dict(fields) if isinstance(fields, Mapping) else fields


def data_or_text(text: str) -> Any:
    """The mapping of a JSON object; any other text unchanged."""
    if text.lstrip().startswith("{"):
        try:
            found = msgspec.json.decode(text)
        except msgspec.DecodeError:
            return text
        return one_or_all(found)
    return text


def real_path(request: SecretRequest, path: Path) -> str:
    """The path without links; SecretUnavailable if it is no path, or if a part of it cannot be read."""
    try:
        return os.path.realpath(path)
    except (OSError, ValueError) as wrong:
        raise request.unavailable(f"{str(path)!r} is not the path of a file: {wrong}", "not_found") from None


def _opened_path(descriptor: int, path: str) -> str:
    """The path of an open file, where the kernel tells it: a folder of `path` may have been replaced by a link."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return path


def read_secret_file(request: SecretRequest, path: Path, format: str) -> Any:
    """The content of a file: text, or the value of a JSON or YAML document."""
    real = real_path(request, path)
    if not request.allows_file(real):
        raise request.unavailable(
            f"access to the file {path} is not allowed in this installation; the setting `secrets.folders` lists the "
            "folders of secret files"
        )
    try:
        # The last part is opened without following a link; that no other part was replaced is checked after it.
        with os.fdopen(os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            if not request.allows_file(_opened_path(file.fileno(), real)):
                raise request.unavailable(f"{path} was replaced by a link while it was opened")
            if not stat.S_ISREG(status.st_mode):
                raise request.unavailable(f"{path} is not a file")
            if status.st_size > MAX_BYTES:
                raise request.unavailable(f"the file {path} is larger than {MAX_BYTES:,} bytes")
            text = file.read(MAX_BYTES + 1).decode("utf-8-sig")
    except UnicodeDecodeError as wrong:
        raise request.unavailable(f"the file {path} is not UTF-8 text", "parse") from wrong
    except OSError as failure:
        raise request.unavailable(f"cannot read the file {path}: {failure.strerror}", "not_found") from failure
    if format == "text":
        return text.rstrip("\r\n")
    try:
        if format == "json":
            return one_or_all(msgspec.json.decode(text))
        if format in ("yaml", "yml"):
            return one_or_all(msgspec.yaml.decode(text))
    except (msgspec.DecodeError, ValueError) as wrong:
        # The parser's message may quote the content.
        raise request.unavailable(f"the file {path} is not valid {format.upper()}", "parse") from wrong
    raise request.unavailable(f'`format` is "{format}"; it must be text, json or yaml', "schema")
