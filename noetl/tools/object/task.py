"""What kind `object` does: one thing with one object, or with a list of them."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from typing import Any

import obstore
from msgspec import DecodeError

from noetl.connections import objects
from noetl.connections.auth import BadAuth, fields_of
from noetl.connections.objects import ObjectLocation
from noetl.core.model.outcome import Outcome, error, ok
from noetl.core.model.tool import ToolCall
from noetl.data import formats, table_files
from noetl.data.content import (
    INLINE_BYTES,
    blocks_of,
    check_format,
    encoded,
    file_blocks,
    kept_or_stored,
    natural_format,
    reference_in,
    save,
)
from noetl.data.payload_reader import Part, PartNotFound, TooLarge, read_part
from noetl.errors import PayloadUnavailable, SecretUnavailable, StoreUnavailable
from noetl.tools._common.fields import MOST_BYTES, OBJECT_ACTIONS, OBJECT_NULLS
from noetl.tools._common.sql_task import flag

LISTED = 1000


async def perform(call: ToolCall) -> Outcome:
    """Do one thing with one object (or a list of them)."""
    task = _Task(call)
    try:
        async with asyncio.timeout(call.timeout.total):
            return await task.run()
    except (BadAuth, SecretUnavailable) as failure:
        return _failed("auth", str(failure))
    except (PayloadUnavailable, StoreUnavailable) as failure:
        return _failed(failure.kind, str(failure))
    except TooLarge as failure:
        return _failed("limit", str(failure))
    except PartNotFound as failure:
        return _failed("not_found", str(failure.args[0]))
    except (DecodeError, UnicodeDecodeError) as failure:
        return _failed("parse", f"the object is not what its format says: {failure}")
    except TimeoutError:
        return _failed("timeout", f"it was not done after {call.timeout.total:g} s (spec.timeout)")
    except objects.errors() as failure:
        return Outcome(
            status="error", error=objects.to_error_info(failure, task.what), helpers={"object": dict(OBJECT_NULLS)}
        )
    except ValueError as wrong:
        return _failed("schema", str(wrong))


class _Task:
    """One run of the tool."""

    def __init__(self, call: ToolCall) -> None:
        self.call = call
        self.what = "the object"

    async def run(self) -> Outcome:
        """Find the store and do it."""
        action = self._action()
        fields = await fields_of(self._given("auth"), self.call.host, prefixes=objects.PREFIXES)
        place = self._place(action, fields)
        self.what = place.url
        store = objects.shared_store(place, fields, connect=self.call.timeout.connect, total=self.call.timeout.total)
        if action in ("put", "get", "head", "exists") and not place.key:
            raise ValueError(f"`{action}` needs a key: {place.url} names only a bucket")
        outcome: Outcome = await getattr(self, f"_{action}")(store, place)
        return outcome

    def _action(self) -> str:
        action = str(self._given("action") or "").lower().removeprefix("object_")
        if not action:
            return "put" if self._has_content() else "get"
        action = {
            "read": "get",
            "write": "put",
            "upload": "put",
            "download": "get",
            "info": "head",
            "keys": "list",
        }.get(action, action)
        if action not in OBJECT_ACTIONS:
            raise ValueError(f"action {action!r} is not one of {', '.join(OBJECT_ACTIONS)}")
        return action

    def _has_content(self) -> bool:
        return any(self._given(name) is not None for name in ("data", "ref"))

    def _place(self, action: str, credential: Mapping[str, Any]) -> ObjectLocation:
        address, key, bucket = self._given("uri"), self._given("key"), self._given("bucket")
        kinds = {"s3": "s3", "gcs": "gcs", "azure": "azure"}
        scheme = self._given("provider") or kinds.get(self.call.kind)
        if scheme and scheme != "file":
            bucket = bucket or credential.get("bucket")
        if bucket and not scheme and not address:
            raise ValueError("`bucket` needs its `provider`: s3, gcs, azure or file")
        target = str(address if address is not None else key or "")
        if action == "list":
            target = target or str(self._given("prefix") or "")
        if not target and not bucket:
            raise ValueError("there is no address: give `uri`, or `provider`, `bucket` and `key`")
        if "://" not in target and (scheme or "file") == "file":
            target = self.call.host.resolve_path(f"{bucket}/{target}" if bucket else target)
            bucket = None
        place = objects.parse_location(target, scheme=scheme, bucket=bucket)
        if address is not None and key is not None:
            place = place._replace(key=f"{place.key.rstrip('/')}/{key}".lstrip("/"))
        if action == "list" and place.scheme == "file" and place.key:
            place = place._replace(bucket=f"{place.bucket}/{place.key}", key="")  # a folder, not a file in one
        return place

    async def _put(self, store: Any, place: ObjectLocation) -> Outcome:
        call = self.call
        data, file = self._given("data"), self._given("file")
        reference = reference_in(self._given("ref")) or reference_in(data)
        format = formats.format_of(given=self._given("format"), path=place.key, default=natural_format(data))
        content_type = str(self._given("content_type") or "")
        if reference is not None:
            check_format(reference, format, place.key)
            blocks: Any = call.host.open_result(reference)
            content_type = content_type or reference.meta.content_type
        elif data is not None:
            blocks = blocks_of(encoded(data, format, place.key))
        elif file:
            blocks = file_blocks(call.host.resolve_path(str(file)))
        else:
            raise ValueError("there is nothing to put: give `data`, `file` or `ref`")
        counted = _Counted(blocks, call)
        answer = await objects.upload(
            store, place.key, counted.blocks(),
            content_type=content_type or formats.CONTENT_TYPES[format], create=flag(self._given("create"), False),
        )  # fmt: skip
        known = {"uri": place.url, "size": counted.size, "etag": answer.get("e_tag")}
        return ok(
            {"uri": place.url, "bytes": counted.size, "etag": answer.get("e_tag")}, object={**OBJECT_NULLS, **known}
        )

    async def _get(self, store: Any, place: ObjectLocation) -> Outcome:
        call = self.call
        payload = await objects.payload_of(store, place.key)
        helper = {**OBJECT_NULLS, "uri": place.url, **payload.known}
        file = self._given("file")
        if file:
            path = call.host.resolve_path(str(file))
            size = await save(payload.stream(), path)
            return ok({"file": path, "bytes": size, "uri": place.url}, object=helper)
        format = formats.format_of(given=self._given("format"), content_type=payload.content_type, path=place.key)
        part = self._part()
        if not part.is_all:
            most = int(call.spec.get("max_bytes") or MOST_BYTES)
            return ok(await read_part(payload, format, part, most=most, verify=False, path=place.key), object=helper)
        inline = int(call.spec.get("inline_bytes") or INLINE_BYTES)
        content = await kept_or_stored(call, payload.stream(), formats.CONTENT_TYPES[format], inline=inline)
        if not isinstance(content, bytes):
            return Outcome(status="ok", ref=content, helpers={"object": helper})
        value = table_files.decode(content, format, path=place.key)
        if isinstance(value, bytes):
            value = base64.b64encode(value).decode()
        return ok(value, object=helper)

    async def _list(self, store: Any, place: ObjectLocation) -> Outcome:
        limit = self._count("limit") or LISTED
        prefix = "/".join(part for part in (place.key, str(self._given("prefix") or "")) if part)
        if self._given("uri") is None and self._given("key") is None:
            prefix = place.key  # it was the prefix already
        found: list[dict[str, Any]] = []
        more = False
        async for page in (
            obstore.list(store, prefix=None, chunk_size=1000) if not prefix else _with_prefix(store, prefix)
        ):
            for entry in page:
                if len(found) == limit:
                    more = True
                    break
                found.append(
                    {
                        "key": entry["path"],
                        "uri": place._replace(key=entry["path"]).url,
                        "size": entry["size"],
                        "last_modified": entry["last_modified"].isoformat(),
                        "etag": entry.get("e_tag"),
                    }
                )
            if more:
                break
        found.sort(key=lambda entry: str(entry["key"]))  # folders are listed as they come
        return ok({"objects": found, "count": len(found), "truncated": more}, object={**OBJECT_NULLS, "uri": place.url})

    async def _delete(self, store: Any, place: ObjectLocation) -> Outcome:
        keys = self._given("keys")
        targets = [str(key) for key in keys] if isinstance(keys, list) else [place.key]
        if not all(targets):
            raise ValueError("`delete` needs a key, or `keys`")
        deleted = 0
        for key in targets:
            try:
                await obstore.delete_async(store, key)
                deleted += 1
            except FileNotFoundError:
                continue  # what was asked for is so already
        return ok({"deleted": deleted}, object={**OBJECT_NULLS, "uri": place.url})

    async def _head(self, store: Any, place: ObjectLocation) -> Outcome:
        payload = await objects.payload_of(store, place.key)
        helper = {**OBJECT_NULLS, "uri": place.url, **payload.known}
        return ok(dict(helper), object=helper)

    async def _exists(self, store: Any, place: ObjectLocation) -> Outcome:
        there = await objects.exists(store, place.key)
        return ok({"exists": there, "uri": place.url}, object={**OBJECT_NULLS, "uri": place.url})

    def _part(self) -> Part:
        select = self._given("select")
        if select is not None and not isinstance(select, str | list | tuple):
            raise ValueError("`select` is a dotted path or a list of columns")
        return Part(select or None, self._count("limit"), self._count("offset") or 0)

    def _count(self, name: str) -> int | None:
        value = self._given(name)
        if value in (None, ""):
            return None
        if not str(value).isdigit():
            raise ValueError(f"`{name}` is a number from 0, not {value!r}")
        return int(value)

    def _given(self, name: str) -> Any:
        return self.call.input.get(name)


class _Counted:
    """Blocks on their way, counted and reported."""

    def __init__(self, blocks: Any, call: ToolCall) -> None:
        self._blocks = blocks
        self._call = call
        self.size = 0

    async def blocks(self) -> Any:
        async for block in self._blocks:
            self.size += len(block)
            self._call.host.progress(bytes=self.size)
            yield block


async def _with_prefix(store: Any, prefix: str) -> Any:
    """Keys that begin with the prefix; the driver itself only knows whole folders."""
    folder = prefix.rpartition("/")[0]
    async for page in obstore.list(store, prefix=folder or None, chunk_size=1000):
        yield [entry for entry in page if entry["path"].startswith(prefix)]


def _failed(kind: str, message: str) -> Outcome:
    return error(kind, message, object=dict(OBJECT_NULLS))
