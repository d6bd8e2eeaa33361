"""Resource files (`*.resource.yaml`): schedules, webhooks and limits of a project, compared with those of the target.

A kind registers itself with `resource_kind`; nothing else knows the kinds.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from noetl.cli.backend.base import Backend
from noetl.errors import RequestRefused
from noetl.settings import similar

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


def read_resources(files: Iterable[Path], root: Path) -> list[Resource]:
    """The resources of these files; RequestRefused names file and field of the first mistake."""
    import yaml

    from noetl.cli.projects import resource_kinds  # noqa: F401 - registers the kinds

    found: dict[tuple[str, str], Resource] = {}
    for file in files:
        where = file.relative_to(root).as_posix()
        try:
            documents = [
                each for each in yaml.load_all(file.read_text(encoding="utf-8"), resource_loader()) if each is not None
            ]
        except (yaml.YAMLError, UnicodeDecodeError) as problem:
            raise RequestRefused(f"{where} is not valid YAML: {' '.join(str(problem).split())}") from None
        for document in documents:
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
    if not isinstance(document, dict):
        raise RequestRefused(f"{where}: a resource is a mapping with kind, metadata.name and spec")
    keys = ["apiVersion", "kind", "metadata", "spec"]
    for key in document:
        if key not in keys:
            raise RequestRefused(f"{where}: unknown key {key}{similar(str(key), keys)}")
    if document.get("apiVersion") != "noetl.io/v2":
        raise RequestRefused(f"{where}: apiVersion must be noetl.io/v2")
    kind = KINDS.get(str(document.get("kind")))
    if kind is None:
        advice = similar(str(document.get("kind")), list(KINDS), f"; the kinds are {', '.join(sorted(KINDS))}")
        raise RequestRefused(f"{where}: unknown resource kind {document.get('kind')!r}{advice}")
    metadata, spec = document.get("metadata"), document.get("spec")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(name, str) or not name:
        raise RequestRefused(f"{where}: metadata.name is required")
    if not isinstance(spec, dict):
        raise RequestRefused(f"{where}: {kind.kind} {name!r} needs a spec")
    for field in spec:
        if field not in kind.fields:
            raise RequestRefused(f"{where}: unknown field spec.{field}{similar(str(field), list(kind.fields))}")
    for field, default in kind.fields.items():
        if default is ... and spec.get(field) in (None, ""):
            raise RequestRefused(f"{where}: {kind.kind} {name!r} needs spec.{field}")
    defaults = {field: default for field, default in kind.fields.items() if default is not ...}
    filled = {**defaults, **spec}
    return Resource(kind.kind, kind.key(name, filled), filled, where)


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
        return ResourceChange("create", kind.kind, resource.name, resource.spec)
    details = tuple(
        f"{field}: {existing.get(field)!r} -> {value!r}"
        for field, value in resource.spec.items()
        if value is not None and existing.get(field) != value
    )
    return ResourceChange("update" if details else "keep", kind.kind, resource.name, resource.spec, details)


async def perform(backend: Backend, change: ResourceChange) -> None:
    """Make one change."""
    kind = KINDS[change.kind]
    if change.action == "delete":
        await kind.remove(backend, change.name)
    elif change.action != "keep":
        await kind.put(backend, change.name, change.spec, change.action == "update")
