"""What a keychain kind may use to find a value, and how it says that it cannot."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from noetl.core.model.tool import Timeout
from noetl.errors import SecretUnavailable

MOST_BYTES = 4 << 20
TIMEOUT = Timeout(connect=10, read=20, total=30)


class SecretRequest(Struct, frozen=True):
    """One keychain entry, its fields rendered, and what is around it.

    `other` gives the value of another entry or stored credential by its name. `allows_address`,
    `allows_variable` and `allows_file` are the installation's policy: a shared server does not hand out
    whatever its own process could read."""

    name: str
    fields: Mapping[str, Any]
    environment: Mapping[str, str]
    folder: str
    other: Callable[[str], Awaitable[Any]]
    is_other: Callable[[str], bool]
    stored: Callable[[str], Awaitable[Any]]
    allows_address: Callable[[str], bool] | None = None
    allows_variable: Callable[[str], bool] = field(default=lambda name: True)
    allows_file: Callable[[str], bool] = field(default=lambda path: True)

    def missing(self, reason: str, kind: str = "auth") -> SecretUnavailable:
        """The error that says why there is no value."""
        return SecretUnavailable({self.name: reason}, kind=kind)

    def text(self, field: str, default: str | None = None) -> str:
        """A field that must be text."""
        value = self.fields.get(field, default)
        if value is None or value == "":
            raise self.missing(f"it has no `{field}`", "schema")
        return str(value)

    async def value(self, field: str) -> str:
        """A field that is a value itself or names another entry."""
        return await self.meant(self.text(field))

    async def meant(self, text: str) -> str:
        """A text, or the one value of the entry it names."""
        if not self.is_other(text):
            return text
        value = await self.other(text)
        if isinstance(value, Mapping):
            only = [each for each in value.values() if isinstance(each, str)]
            picked = value.get("value") or value.get("token") or (only[0] if len(only) == 1 else None)
            if picked is None:
                raise self.missing(f'it names "{text}", which has several values: {", ".join(map(str, value))}')
            return str(picked)
        return str(value)

    async def mapping(self, field: str) -> dict[str, Any]:
        """A field that is a mapping, or names an entry that has one; values may name entries too."""
        given = self.fields.get(field)
        if given is None:
            return {}
        if isinstance(given, str):
            found = await self.other(given)
            return dict(found) if isinstance(found, Mapping) else {"token": found, "value": found}
        if not isinstance(given, Mapping):
            raise self.missing(f"its `{field}` is a mapping or an entry's name", "schema")
        named = given.get("credential")
        if isinstance(named, str) and len(given) == 1:
            found = await self.other(named)
            return dict(found) if isinstance(found, Mapping) else {"token": found, "value": found}
        return {str(key): await self.meant(value) if isinstance(value, str) else value for key, value in given.items()}


async def ask(
    asked: SecretRequest,
    method: str,
    url: str,
    headers: Mapping[str, str],
    *,
    body: bytes | None = None,
    who: str,
    trusted: bool = False,
) -> tuple[int, Any]:
    """Status and JSON of one request to a secret manager; SecretUnavailable when there is no answer.

    A `trusted` address is the installation's own and may be private; a playbook's is held to the policy."""
    from noetl.connections.http.client import HttpFailure, Request, exchange

    request = Request(
        method=method,
        url=url,
        headers=dict(headers),
        body=(lambda: body) if body is not None else None,
        timeout=TIMEOUT,
        redirects=0,
    )
    data = bytearray()
    try:
        async with exchange(request, None if trusted else asked.allows_address) as answer:
            async for chunk in answer.chunks():
                data += chunk
                if len(data) > MOST_BYTES:
                    raise asked.missing(f"the answer of {who} is too long for a secret")
    except HttpFailure as failure:
        raise asked.missing(f"{who} cannot be asked: {failure.message}", failure.kind) from failure
    try:
        return answer.status, msgspec.json.decode(data) if data else None
    except msgspec.DecodeError:
        return answer.status, None


def one_or_all(fields: Any) -> Any:
    """A mapping whose only field is `value` is that value."""
    if isinstance(fields, Mapping) and set(fields) == {"value"}:
        return fields["value"]
    return dict(fields) if isinstance(fields, Mapping) else fields


def data_or_text(text: str) -> Any:
    """JSON of a mapping as the mapping; other text as it is."""
    if text.lstrip().startswith("{"):
        try:
            found = msgspec.json.decode(text)
        except msgspec.DecodeError:
            return text
        return one_or_all(found)
    return text


def read_secret_file(asked: SecretRequest, path: Path, format: str) -> Any:
    """A file's content as a secret: text, or the data of JSON or YAML."""
    if not asked.allows_file(str(path.resolve())):
        raise asked.missing(f"this installation does not hand out the file {path}")
    try:
        if path.stat().st_size > MOST_BYTES:
            raise asked.missing(f"the file {path} is larger than {MOST_BYTES:,} bytes")
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as wrong:
        raise asked.missing(f"the file {path} is not UTF-8 text", "parse") from wrong
    except OSError as failure:
        raise asked.missing(f"the file {path} cannot be read: {failure.strerror}", "not_found") from failure
    if format == "text":
        return text.rstrip("\r\n")
    try:
        if format == "json":
            return one_or_all(msgspec.json.decode(text))
        if format in ("yaml", "yml"):
            return one_or_all(msgspec.yaml.decode(text))
    except (msgspec.DecodeError, ValueError) as wrong:
        # What the parser says may quote the content.
        raise asked.missing(f"the file {path} is not valid {format.upper()}", "parse") from wrong
    raise asked.missing(f'its `format` is "{format}"; it can be text, json or yaml', "schema")
