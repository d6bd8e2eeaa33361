"""Sends one message for kind `mail`."""

from __future__ import annotations

import asyncio
import hashlib
import mimetypes
import os
from collections.abc import Mapping
from typing import Any

from noetl.connections.auth import BadAuth, fields_of
from noetl.connections.mail import PREFIXES, Attachment, Mail, MailFailure, send
from noetl.core.model.outcome import Outcome, error, ok
from noetl.core.model.reference import Reference
from noetl.core.model.tool import ToolCall
from noetl.data.content import encoded, natural_format, reference_in
from noetl.data.files import formats
from noetl.errors import PayloadUnavailable, SecretUnavailable
from noetl.tools._common.payload_task import explain
from noetl.tools.mail.spec import MAX_BYTES


async def run(call: ToolCall) -> Outcome:
    """Send one message."""
    try:
        fields = await fields_of(call.input.get("auth"), call.host, prefixes=PREFIXES)
        mail = await _mail(call)
        sent = await send(mail, fields, allows=call.host.allows_address, timeout=call.timeout.total)
    except (BadAuth, SecretUnavailable) as failure:
        return error("auth", str(failure))
    except MailFailure as failure:
        return Outcome(status="error", error=failure.info)
    except PayloadUnavailable as failure:
        return error("ref.unresolved", str(failure))
    except ValueError as failure:
        return error("schema", str(failure))
    except OSError as failure:
        info = explain(failure, "the attachment")
        return Outcome(status="error", error=info) if info else error("not_found", f"the attachment: {failure}")
    return ok({"message_id": sent.message_id, "accepted": sent.accepted, "refused": sent.refused})


async def _mail(call: ToolCall) -> Mail:
    given = call.input
    headers = given.get("headers") or {}
    if not isinstance(headers, Mapping):
        raise ValueError("headers must be a mapping")
    return Mail(
        to=_list(given.get("to"), "to"),
        subject=str(given.get("subject") or ""),
        text=str(given.get("text") or ""),
        html=None if given.get("html") is None else str(given["html"]),
        sender=str(given.get("from") or ""),
        cc=_list(given.get("cc"), "cc"),
        bcc=_list(given.get("bcc"), "bcc"),
        reply_to=given.get("reply_to"),
        headers={str(name): str(value) for name, value in headers.items()},
        attachments=await _attachments(call),
        id=hashlib.sha256(call.idempotency_key.encode()).hexdigest()[:32],
    )


def _list(value: Any, what: str) -> list[str]:
    if value is None or value == "":
        return []
    several = value if isinstance(value, list) else [value]
    if not all(isinstance(each, str) for each in several):
        raise ValueError(f"{what} must be an address or a list of addresses")
    return several


async def _attachments(call: ToolCall) -> list[Attachment]:
    given = call.input.get("attachments") or []
    if not isinstance(given, list):
        raise ValueError("attachments must be a list")
    left = int(call.spec.get("max_bytes") or MAX_BYTES)
    found = []
    for number, each in enumerate(given):
        if not isinstance(each, Mapping):
            raise ValueError(f"attachments[{number}] must be a mapping with ref, data or path")
        attachment = await _attachment(call, each, number, left)
        left -= len(attachment.content)
        found.append(attachment)
    return found


async def _attachment(call: ToolCall, given: Mapping[str, Any], number: int, most: int) -> Attachment:
    chosen = [name for name in ("ref", "data", "path") if given.get(name) is not None]
    if len(chosen) != 1:
        raise ValueError(f"attachments[{number}] needs exactly one of ref, data and path")
    name = str(given.get("name") or "")
    if chosen == ["ref"]:
        reference = _reference(given["ref"], number)
        content, kind = await _stored(call, reference, most), reference.meta.content_type
        name = name or f"attachment-{number + 1}{mimetypes.guess_extension(kind or '') or ''}"
    elif chosen == ["path"]:
        path = call.host.resolve_path(str(given["path"]))
        content = await asyncio.to_thread(_file, path, most)
        name = name or os.path.basename(path)
        kind = ""
    else:
        name = name or f"attachment-{number + 1}.json"
        data = given["data"]
        format = formats.format_of(given=given.get("format"), path=name, default=natural_format(data))
        content, kind = encoded(data, format, name), formats.CONTENT_TYPES[format]
    if len(content) > most:
        raise _too_large(call)
    kind = str(given.get("content_type") or mimetypes.guess_type(name)[0] or kind or "application/octet-stream")
    return Attachment(name, content, kind)


async def _stored(call: ToolCall, reference: Reference, most: int) -> bytes:
    content = bytearray()
    async for block in call.host.open_result(reference):
        content += block
        if len(content) > most:
            raise _too_large(call)
    return bytes(content)


def _file(path: str, most: int) -> bytes:
    """The content of a file, at most one byte more than the limit."""
    with open(path, "rb") as file:
        return file.read(most + 1)


def _reference(value: Any, number: int) -> Reference:
    found = reference_in(value)
    if found is None:
        raise ValueError(f"attachments[{number}].ref must be a reference, such as {{{{ step.ref }}}}")
    return found


def _too_large(call: ToolCall) -> ValueError:
    most = int(call.spec.get("max_bytes") or MAX_BYTES)
    return ValueError(f"the attachments have more than {most} bytes (spec.max_bytes)")
