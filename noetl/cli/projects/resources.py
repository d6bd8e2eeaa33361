"""Resource files (`*.resource.yaml`): schedules, webhooks and limits of a project, compared with those of the target.

A kind registers itself with `resource_kind`; nothing else knows the kinds.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from noetl.cli.backend.base import Backend
from noetl.errors import NotFound, RequestRefused, unknown

Spec = dict[str, Any]
KINDS: dict[str, ResourceKind] = {}


class ResourceKind(Struct, frozen=True):
    """How resources of a kind are read, compared and changed.

    `fields` are those of `spec` with their defaults; a default of `...` means that the field is required."""

    kind: str
    fields: Mapping[str, Any]
    current: Callable[[Backend], Awaitable[dict[str, Spec]]]
    put: Callable[[Backend, str, Spec, bool], Awaitable[None]]  # name, spec, whether one of this name exists
    remove: Callable[[Backend, str], Awaitable[None]]
    path: Callable[[Spec], str | None]  # the path of the playbook that a resource belongs to
    key: Callable[[str, Spec], str] = lambda name, spec: name  # identifies a resource at the target
    check: Callable[[str, Spec], None] | None = None  # RequestRefused if a server would refuse the definition


def resource_kind(kind: ResourceKind) -> ResourceKind:
    """Register a kind."""
    KINDS[kind.kind] = kind
    return kind


class Resource(Struct, frozen=True):
    """A resource of a file."""

    kind: str
    name: str
    spec: Spec
    where: str


class ResourceChange(Struct, frozen=True):
    """What has to be done for one resource."""

    action: Literal["create", "update", "delete", "keep"]
    kind: str
    name: str
    spec: Spec
    details: tuple[str, ...] = ()
    where: str = ""  # the file that describes it


def read_resources(files: Iterable[Path], root: Path) -> list[Resource]:
    """The resources of these files, which `resource_checks` has checked; a name may be there once."""
    import yaml

    found: dict[tuple[str, str], Resource] = {}
    for file in files:
        where = file.relative_to(root).as_posix()
        for document in yaml.load_all(file.read_text(encoding="utf-8"), resource_loader()):
            if document is None:
                continue
            resource = _read(document, where)
            key = (resource.kind, resource.name)
            if key in found:
                raise RequestRefused(f"{where}: {resource.kind} {resource.name!r} is also in {found[key].where}")
            found[key] = resource
    return list(found.values())


def resource_loader() -> Any:
    """A safe loader whose only booleans are true and false, as in playbooks: `on` is a name."""
    import yaml

    class Loader(yaml.SafeLoader):
        """YAML 1.2 booleans."""

    resolvers = {
        first: [each for each in known if each[0] != "tag:yaml.org,2002:bool"]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    Loader.yaml_implicit_resolvers = resolvers
    Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|false)$"), list("tf"))
    return Loader


def _read(document: Any, where: str) -> Resource:
    kind = KINDS[document["kind"]]
    defaults = {field: default for field, default in kind.fields.items() if default is not ...}
    filled = {**defaults, **document["spec"]}
    return Resource(kind.kind, kind.key(document["metadata"]["name"], filled), filled, where)


async def changes(
    backend: Backend, wanted: list[Resource], *, prune: bool, paths: Iterable[str]
) -> list[ResourceChange]:
    """What differs between the files and the target; `prune` deletes other resources of the playbooks `paths`."""
    own = set(paths)
    found: list[ResourceChange] = []
    kinds = [kind for kind in KINDS.values() if prune or any(each.kind == kind.kind for each in wanted)]
    for kind in kinds:
        existing = await kind.current(backend)
        mine = {each.name: each for each in wanted if each.kind == kind.kind}
        for name, resource in mine.items():
            found.append(_change(kind, resource, existing.get(name)))
        for name, spec in existing.items():
            if prune and name not in mine and kind.path(spec) in own:
                found.append(ResourceChange("delete", kind.kind, name, spec))
    return found


def _change(kind: ResourceKind, resource: Resource, existing: Spec | None) -> ResourceChange:
    if existing is None:
        return ResourceChange("create", kind.kind, resource.name, resource.spec, where=resource.where)
    details = tuple(
        f"{field}: {existing.get(field)!r} -> {value!r}"
        for field, value in resource.spec.items()
        if value is not None and existing.get(field) != value
    )
    action: Literal["update", "keep"] = "update" if details else "keep"
    return ResourceChange(action, kind.kind, resource.name, resource.spec, details, resource.where)


async def problems(backend: Backend, found: list[ResourceChange], paths: Iterable[str]) -> list[str]:
    """Playbooks and credentials that resources name and that neither the project (`paths`) nor the target has."""
    own = set(paths)
    wrong: list[str] = []
    stored: set[str] | None = None
    for each in found:
        if each.action not in ("create", "update"):
            continue
        path = each.spec.get("path")
        if path is not None and path not in own:
            try:
                await backend.playbook(path)
            except NotFound as problem:
                wrong.append(f"{each.where}: {each.kind} {each.name!r}: {problem}")
        credential = _credential(each.spec)
        if credential:
            stored = await _credentials(backend) if stored is None else stored
            if credential not in stored:
                advice = f"create it with `noetl credential set {credential}`"
                absent = unknown("credential", credential, stored, advice)
                wrong.append(f"{each.where}: {each.kind} {each.name!r}: {absent}")
    return wrong


def _credential(spec: Spec) -> str | None:
    """The credential of a trigger, or of the channel of a notification."""
    channel = spec.get("to")
    named = spec.get("credential") or (channel.get("credential") if isinstance(channel, dict) else None)
    return named if isinstance(named, str) else None


async def _credentials(backend: Backend) -> set[str]:
    """The names of the stored credentials; who may create resources that name them may list them."""
    client = getattr(backend, "client", None)
    return {name for name, _ in await asyncio.to_thread(client.credentials)} if client is not None else set()


async def perform(backend: Backend, change: ResourceChange) -> None:
    """Make one change; an error names the resource and its file."""
    kind = KINDS[change.kind]
    try:
        if change.action == "delete":
            await kind.remove(backend, change.name)
        elif change.action != "keep":
            await kind.put(backend, change.name, change.spec, change.action == "update")
    except RequestRefused as problem:
        where = f"{change.where}: " if change.where else ""
        raise RequestRefused(f"{where}{change.kind} {change.name!r}: {problem}") from None
