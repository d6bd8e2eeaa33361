"""Performs one action on one object, or on a list of objects, for kind `object`."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import obstore

from noetl.connections import objects
from noetl.connections.auth import BadAuth, fields_of
from noetl.connections.objects import ObjectLocation
from noetl.core.model.outcome import Outcome, error, ok
from noetl.core.model.tool import ToolCall
from noetl.data.content import INLINE_BYTES, encoded, file_blocks, kept_or_stored, natural_format, save
from noetl.data.files import compression, formats, table_files
from noetl.data.key_patterns import key_pattern
from noetl.data.payload_reader import MemoryPayload, read_part
from noetl.errors import SecretUnavailable
from noetl.runtime.temporary_folders import TemporaryFolder
from noetl.runtime.threads import in_thread
from noetl.tools._common.payload_task import explain, read_count, read_part_fields, upload_blocks
from noetl.tools._common.sql_task import flag
from noetl.tools.object.spec import ACTION_ALIASES, ACTIONS, MAX_BYTES, NULLS

LIST_LIMIT = 1000
EVERY = "loop over the objects of a list"
READS = ("get", "list", "head", "exists", "copy", "move")


async def run(call: ToolCall) -> Outcome:
    """Perform one action."""
    task = _Task(call)
    try:
        async with asyncio.timeout(call.timeout.total):
            return await task.run()
    except (BadAuth, SecretUnavailable) as failure:
        return _failure("auth", str(failure))
    except TimeoutError:
        return _failure("timeout", f"the operation did not complete within {call.timeout.total:g} s (spec.timeout)")
    except Exception as failure:
        info = explain(failure, task.target)
        if info is None and isinstance(failure, objects.errors()):
            info = objects.to_error_info(failure, task.target)
        if info is not None:
            return Outcome(status="error", error=info, helpers={"object": dict(NULLS)})
        if isinstance(failure, ValueError):
            is_named = not type(failure).__module__.startswith("pyarrow")
            return _failure("schema", str(failure) if is_named else f"{task.target}: {failure}")
        raise


class _Task:
    """One run of the tool."""

    def __init__(self, call: ToolCall) -> None:
        self.call = call
        self.fields = call.input
        self.target = "the object"

    async def run(self) -> Outcome:
        """Open the store and perform the action."""
        action = self._action()
        fields = await fields_of(self.fields.get("auth"), self.call.host, prefixes=objects.PREFIXES)
        place = self._place(action, fields)
        self.target = place.url
        opened = place
        if action in READS and place.scheme == "file" and not await asyncio.to_thread(Path(place.bucket).is_dir):
            opened = place._replace(scheme="memory")  # without objects: reading creates no folder
        store = await objects.checked_store(opened, fields, self.call.host.address_check, self.call.timeout)
        if action in ("put", "get", "head", "exists", "copy", "move") and not place.key:
            raise ValueError(f"`{action}` requires a key: {place.url} contains only a bucket")
        outcome: Outcome = await getattr(self, f"_{action}")(store, place)
        return outcome

    def _action(self) -> str:
        action = str(self.fields.get("action") or "").lower().removeprefix("object_")
        if not action:
            return "put" if self._has_content() else "get"
        action = ACTION_ALIASES.get(action, action)
        if action not in ACTIONS:
            raise ValueError(f"action {action!r} is not one of {', '.join(ACTIONS)}")
        return action

    def _has_content(self) -> bool:
        return any(self.fields.get(name) is not None for name in ("data", "ref"))

    def _place(self, action: str, credential: Mapping[str, Any]) -> ObjectLocation:
        address, key, bucket = self.fields.get("uri"), self.fields.get("key"), self.fields.get("bucket")
        kinds = {"s3": "s3", "gcs": "gcs", "azure": "azure"}
        scheme = self.fields.get("provider") or kinds.get(self.call.kind)
        if scheme and scheme != "file":
            bucket = bucket or credential.get("bucket")
        if bucket and not scheme and not address:
            raise ValueError("`bucket` requires `provider`: s3, gcs, azure or file")
        target = str(address if address is not None else key or "")
        if action == "list":
            target = target or str(self.fields.get("prefix") or "")
        is_folder = target.endswith("/") and (address is None or key is None)
        if is_folder and action == "put" and self.fields.get("file"):
            target, is_folder = target + Path(str(self.fields["file"])).name, False
        if not target and not bucket:
            raise ValueError("no address: set `uri`, or `provider`, `bucket` and `key`")
        if "://" not in target and (scheme or "file") == "file":
            target = self.call.host.resolve_path(f"{bucket}/{target}" if bucket else target)
            bucket = None
        place = objects.parse_location(target, scheme=scheme, bucket=bucket)
        if is_folder and place.key and action not in ("list", "exists") and not self.fields.get("keys"):
            raise ValueError(f"{place.url} is a folder, and `{action}` is for one object: {EVERY}")
        if address is not None and key is not None:
            place = place._replace(key=f"{place.key.rstrip('/')}/{key}".lstrip("/"))
        if action == "delete" and place.scheme == "file" and self.fields.get("keys"):
            place = place._replace(bucket=f"{place.bucket}/{place.key}".rstrip("/"), key="")  # the keys are in a folder
        if action == "list" and place.scheme == "file" and place.key:
            path = f"{place.bucket}/{place.key}"  # a folder, not a file in one
            pattern = key_pattern(path, brackets=False)
            folder = path if pattern is None else pattern.folder
            place = place._replace(bucket=folder, key=path[len(folder) + 1 :])
        return place

    async def _put(self, store: Any, place: ObjectLocation) -> Outcome:
        default = natural_format(self.fields.get("data"))
        format = formats.format_of(given=self.fields.get("format"), path=place.key, default=default)
        codec, name = self._codec(place.key, format), compression.without_ending(place.key)
        blocks, stored_type = upload_blocks(self.call, name, format, lambda data: encoded(data, format, name))
        if codec and not compression.is_compressed(str(self.fields.get("file") or "")):
            blocks = compression.compressed_blocks(blocks, codec)
        counted = _CountedBlocks(blocks, self.call)
        reply = await objects.upload(
            store,
            place.key,
            counted.blocks(),
            content_type=str(self.fields.get("content_type") or stored_type or formats.CONTENT_TYPES[format]),
            create=flag(self.fields.get("create"), False),
        )
        etag = reply.get("e_tag")
        helper = {**NULLS, "uri": place.url, "size": counted.size, "etag": etag}
        return ok({"uri": place.url, "bytes": counted.size, "etag": etag}, object=helper)

    async def _get(self, store: Any, place: ObjectLocation) -> Outcome:
        call = self.call
        payload = await objects.payload_of(store, place.key)
        helper = {**NULLS, "uri": place.url, **payload.known}
        format = formats.format_of(given=self.fields.get("format"), content_type=payload.content_type, path=place.key)
        codec = self._codec(place.key, format)
        file = self.fields.get("file")
        if file:
            name = place.key.rpartition("/")[2] if str(file).endswith("/") else ""
            path = call.host.resolve_path(str(file) + name)
            if codec and not compression.is_compressed(path):
                size = await self._save_decompressed(payload, codec, path)
            else:
                size = await save(payload.stream(), path)
            return ok({"file": path, "bytes": size, "uri": place.url}, object=helper)
        if codec:
            payload = await self._decompressed(payload, codec)
        part = read_part_fields(self.fields)
        if not part.is_all:
            max_bytes = int(call.spec.get("max_bytes") or MAX_BYTES)
            data = await read_part(payload, format, part, most=max_bytes, verify=False, path=place.key)
            return ok(data, object=helper)
        inline = int(call.spec.get("inline_bytes") or INLINE_BYTES)
        content = await kept_or_stored(call, payload.stream(), formats.CONTENT_TYPES[format], inline=inline)
        if not isinstance(content, bytes):
            return Outcome(status="ok", ref=content, helpers={"object": helper})
        value = table_files.decode(content, format, path=compression.without_ending(place.key))
        if isinstance(value, bytes):
            value = base64.b64encode(value).decode()
        return ok(value, object=helper)

    async def _save_decompressed(self, payload: Any, codec: str, path: str) -> int:
        """Write the content of a compressed object to a file; return the number of bytes."""
        with TemporaryFolder("noetl-object-") as folder:
            packed, plain = Path(folder, "packed"), Path(folder, "plain")
            await save(payload.stream(), str(packed))
            try:
                await in_thread(partial(compression.decompress_file, str(packed), str(plain), codec))
            except ValueError as wrong:
                raise ValueError(f"{self.target}: {wrong}; compression: none leaves the bytes as they are") from None
            return await save(file_blocks(str(plain)), path)

    async def _decompressed(self, payload: Any, codec: str) -> Any:
        """The content of a compressed object, in memory."""
        advice = "read it with kind: transfer, or with compression: none and `file`"
        if payload.size > MAX_BYTES:
            raise ValueError(f"{self.target} is compressed and larger than {MAX_BYTES >> 20} MiB; {advice}")
        packed = b"".join([block async for block in payload.stream()])
        try:
            return MemoryPayload(await asyncio.to_thread(compression.decompress, packed, codec, MAX_BYTES))
        except ValueError as wrong:
            raise ValueError(f"{self.target}: {wrong}; {advice}") from None

    def _codec(self, key: str, format: str) -> str | None:
        """How the content is compressed as a whole; columnar formats are compressed inside."""
        if format in compression.COLUMNAR:
            return None
        given = self.fields.get("compression")
        if given is None and format == "bytes":
            return None  # content that is passed on as it is
        return compression.compression_of(given, key, format)

    async def _copy(self, store: Any, place: ObjectLocation) -> Outcome:
        return await self._copy_to(store, place, move=False)

    async def _move(self, store: Any, place: ObjectLocation) -> Outcome:
        return await self._copy_to(store, place, move=True)

    async def _copy_to(self, store: Any, place: ObjectLocation, *, move: bool) -> Outcome:
        """Copy an object within its store, or stream it to another one; `move` deletes the original afterwards."""
        target = self._target_place(place)
        await self._check_key(store, place, "move" if move else "copy")
        if await asyncio.to_thread(_is_same, place, target):
            raise ValueError(f"`to` is the object itself: {place.url}")
        known = (await objects.payload_of(store, place.key)).known
        create = flag(self.fields.get("create"), False)
        self.target = target.url
        if target[:2] == place[:2]:
            if create and await objects.exists(store, target.key):
                raise FileExistsError(target.url)
            await obstore.copy_async(store, place.key, target.key)
        else:
            fields = await fields_of(self.fields.get("auth"), self.call.host, prefixes=objects.PREFIXES)
            other = await objects.checked_store(target, fields, self.call.host.address_check, self.call.timeout)
            counted = _CountedBlocks(objects.download(store, place.key), self.call)
            await objects.upload(other, target.key, counted.blocks(), content_type=known["content_type"], create=create)
        if move:
            self.target = place.url
            await obstore.delete_async(store, place.key)
        helper = {**NULLS, **known, "uri": target.url}
        return ok({"uri": target.url, "from": place.url, "bytes": known["size"]}, object=helper)

    def _target_place(self, place: ObjectLocation) -> ObjectLocation:
        to = str(self.fields.get("to") or "")
        if not to:
            raise ValueError("`copy` and `move` require `to`: an address, or a key in the same bucket")
        if to.endswith("/"):
            to += place.key.rpartition("/")[2]
        if "://" in to:
            return objects.parse_location(to)
        if place.scheme == "file":
            return objects.parse_location(self.call.host.resolve_path(to))
        return place._replace(key=to.lstrip("/"))

    async def _list(self, store: Any, place: ObjectLocation) -> Outcome:
        limit = read_count(self.fields, "limit") or LIST_LIMIT
        prefix = "/".join(part for part in (place.key, str(self.fields.get("prefix") or "")) if part)
        if self.fields.get("uri") is None and self.fields.get("key") is None:
            prefix = place.key  # the key is the prefix
        found: list[dict[str, Any]] = []
        more = False
        async for page in _pages(store, prefix):
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
        found.sort(key=lambda entry: str(entry["key"]))  # the local file system lists in arbitrary order
        return ok({"objects": found, "count": len(found), "truncated": more}, object={**NULLS, "uri": place.url})

    async def _delete(self, store: Any, place: ObjectLocation) -> Outcome:
        keys = self.fields.get("keys")
        targets = [str(key) for key in keys] if isinstance(keys, list) else [place.key]
        if not all(targets):
            raise ValueError("`delete` requires a key, or `keys`")
        deleted = 0
        for key in targets:
            await self._check_key(store, place._replace(key=key), "delete")
            try:
                await obstore.delete_async(store, key)
                deleted += 1
            except FileNotFoundError:
                continue  # deleting is idempotent
        return ok({"deleted": deleted}, object={**NULLS, "uri": place.url})

    async def _check_key(self, store: Any, place: ObjectLocation, action: str) -> None:
        """ValueError for a pattern, unless an object has this name."""
        if "*" in place.key and not await objects.exists(store, place.key):
            raise ValueError(f"{place.url}: `{action}` takes no pattern; {EVERY}")

    async def _head(self, store: Any, place: ObjectLocation) -> Outcome:
        payload = await objects.payload_of(store, place.key)
        helper = {**NULLS, "uri": place.url, **payload.known}
        return ok(dict(helper), object=helper)

    async def _exists(self, store: Any, place: ObjectLocation) -> Outcome:
        exists = await objects.exists(store, place.key)
        return ok({"exists": exists, "uri": place.url}, object={**NULLS, "uri": place.url})


class _CountedBlocks:
    """Counts the bytes of an upload and reports the progress."""

    def __init__(self, blocks: Any, call: ToolCall) -> None:
        self._blocks = blocks
        self._call = call
        self.size = 0

    async def blocks(self) -> Any:
        async for block in self._blocks:
            self.size += len(block)
            self._call.host.progress(bytes=self.size)
            yield block


async def _pages(store: Any, prefix: str) -> Any:
    """Objects whose key starts with the prefix, or matches it as a pattern; the driver only lists whole folders."""
    pattern = key_pattern(prefix, brackets=False)
    folder = prefix.rpartition("/")[0] if pattern is None else pattern.folder
    async for page in obstore.list(store, prefix=folder or None, chunk_size=1000):
        yield [
            entry
            for entry in page
            if (entry["path"].startswith(prefix) if pattern is None else pattern.matches(entry["path"]))
        ]


def _is_same(place: ObjectLocation, other: ObjectLocation) -> bool:
    """Whether two addresses name one object, also in another spelling: a move would delete it."""
    if place.scheme == other.scheme == "file":
        paths = [Path(each.bucket, each.key) for each in (place, other)]
        return paths[0].parent.resolve() / paths[0].name == paths[1].parent.resolve() / paths[1].name
    keys = [[part for part in each.key.split("/") if part not in ("", ".")] for each in (place, other)]
    return place[:2] == other[:2] and keys[0] == keys[1]


def _failure(kind: str, message: str) -> Outcome:
    return error(kind, message, object=dict(NULLS))
