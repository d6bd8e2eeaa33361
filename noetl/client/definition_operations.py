"""Operations on what an installation stores beside executions: playbooks, credentials, limits, state and schemas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from noetl.client.requests import (
    Document,
    Operation,
    Pages,
    document_of,
    item_path,
    limit_path,
    stored_playbook,
    without_none,
)
from noetl.core.model.bundle import Bundle
from noetl.storage.ports.playbooks import Origin, StoredPlaybook
from noetl.transport.api_connection import Request, diagnostics

if TYPE_CHECKING:
    from noetl.core.language.diagnostics import Diagnostic


class DefinitionOperations:
    """Operations on playbooks, credentials, limits, state and schemas."""

    # ── catalog ────────────────────────────────────────────────────────────────────────

    def register(
        self,
        content: str,
        *,
        strict: bool = False,
        legacy: bool = False,
        file: str = "",
        origin: Origin | None = None,
    ) -> Operation[StoredPlaybook]:
        """Register a new version under the playbook's own path; the same text again is the same version.

        `file` is `bundle:DIGEST/PATH` if files travel with the playbook (`add_bundle`)."""
        body: Document = {"content": content, "strict": strict, "legacy": legacy}
        if file:
            body["file"] = file
        if origin is not None and origin != Origin():
            body["origin"] = msgspec.to_builtins(origin)
        return stored_playbook({**(yield Request("POST", "/api/catalog/register", body)), "content": content})

    def add_bundle(self, bundle: Bundle, contents: Mapping[str, bytes]) -> Operation[str]:
        """Send a bundle and those of its files that the server does not have; return its digest."""
        body = {"files": bundle.files, "profile": msgspec.to_builtins(bundle.profile)}
        added = yield Request("POST", "/api/bundles", body)
        for digest in added["missing"]:
            yield Request("PUT", f"/api/files/{digest}", contents[digest], raw=True)
        return str(added["digest"])

    def bundle(self, digest: str) -> Operation[Bundle]:
        """The files and the profile of a bundle."""
        found = yield Request("GET", f"/api/bundles/{digest}")
        return msgspec.convert({"files": found["files"], "profile": found["profile"]}, Bundle)

    def playbooks(self, search: str | None = None) -> Pages[StoredPlaybook]:
        """The newest version of every path, without the texts."""
        return Pages("/api/catalog", stored_playbook, {"search": search})

    def playbook(self, path: str, version: int | None = None) -> Operation[StoredPlaybook]:
        """A version of a path, or the newest one; NotFound when it does not exist."""
        return stored_playbook((yield Request("GET", f"/api/catalog/{quote(path)}", query={"version": version})))

    def validate(self, content: str, *, strict: bool = False, legacy: bool = False) -> Operation[list[Diagnostic]]:
        """All problems of a playbook's text, found with the server's tool kinds."""
        body = {"content": content, "strict": strict, "legacy": legacy}
        return diagnostics((yield Request("POST", "/api/validate", body))["diagnostics"])

    # ── credentials ────────────────────────────────────────────────────────────────────

    def credentials(self) -> Operation[list[tuple[str, str]]]:
        """Names and types; values cannot be read."""
        return [(row["name"], row["type"]) for row in (yield Request("GET", "/api/credentials"))["items"]]

    def set_credential(self, name: str, type: str, data: Mapping[str, Any]) -> Operation[None]:
        """Store a credential, encrypted."""
        yield Request("PUT", item_path("credentials", name), {"type": type, "data": dict(data)})

    def delete_credential(self, name: str) -> Operation[None]:
        """Delete a credential; NotFound when it does not exist."""
        yield Request("DELETE", item_path("credentials", name))

    # ── limits ─────────────────────────────────────────────────────────────────────────

    def set_limit(
        self,
        subject: str,
        name: str,
        most: int | None = None,
        *,
        weight: int | None = None,
        max_waiting: int | None = None,
    ) -> Operation[Document]:
        """Limit how many run at once: runs of a `pool`, runs with a `credential`, runs of executions with a `label`
        (`tenant=acme`), executions of a `playbook`.

        `weight` of a playbook or tenant is its share of the workers' slots relative to others while runs wait; while
        `max_waiting` runs of a tenant wait, its requests are refused."""
        body = without_none({"most": most, "weight": weight, "max_waiting": max_waiting})
        return document_of((yield Request("PUT", limit_path(subject, name), body)))

    def limits(self) -> Pages[Document]:
        """All limits, with what uses their slots and how many wait."""
        return Pages("/api/limits", document_of)

    def limit(self, subject: str, name: str) -> Operation[Document]:
        """One limit."""
        return document_of((yield Request("GET", limit_path(subject, name))))

    def remove_limit(self, subject: str, name: str) -> Operation[None]:
        """Remove a limit."""
        yield Request("DELETE", limit_path(subject, name))

    # ── state ──────────────────────────────────────────────────────────────────────────

    def states(self) -> Pages[Document]:
        """The playbooks that have state, by path."""
        return Pages("/api/state", document_of)

    def state_of(self, path: str) -> Operation[Document]:
        """The state that executions of a playbook share."""
        return document_of((yield Request("GET", f"/api/state/{quote(path)}")))

    def set_state(self, path: str, values: Document, versions: Document | None = None) -> Operation[Document]:
        """Set values by key or dotted path; with `versions`, only if the keys have these versions."""
        body = {"values": values, "versions": versions}
        return document_of((yield Request("PATCH", f"/api/state/{quote(path)}", body)))

    def reset_state(self, path: str, keys: Sequence[str] = ()) -> Operation[None]:
        """Remove these keys of the state of a playbook, or all of them."""
        yield Request("DELETE", f"/api/state/{quote(path)}", query={"key": tuple(keys)})

    # ── schemas ────────────────────────────────────────────────────────────────────────

    def register_schema(self, name: str, schema: Document, compatible: str = "backward") -> Operation[Document]:
        """Register a version of a JSON Schema; Conflict if it is not compatible with the newest version."""
        body = {"json_schema": schema, "compatible": compatible}
        return document_of((yield Request("PUT", f"/api/schemas/{quote(name)}", body)))

    def schemas(self) -> Pages[Document]:
        """The newest version of each schema, by name."""
        return Pages("/api/schemas", document_of)

    def schema(self, name: str) -> Operation[Document]:
        """A version of a schema (`orders/v2`), or the newest one (`orders`)."""
        return document_of((yield Request("GET", f"/api/schemas/{quote(name)}")))
