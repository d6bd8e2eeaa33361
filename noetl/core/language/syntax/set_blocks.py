"""Reading `set`: flat (`ctx.page: 1`), nested (`ctx: {page: 1}`), without a scope, and v10's `set_ctx`."""

from __future__ import annotations

from noetl.core.language.diagnostics import did_you_mean
from noetl.core.language.source.node_reader import Reader, describe_node
from noetl.core.language.source.nodes import Mapping, Node, Scalar
from noetl.core.language.syntax.grammar import READ_ONLY_SCOPES, SCOPES
from noetl.core.language.syntax.tree import SetSyntax
from noetl.core.model.playbook import STATE_KEY, STEP_KEY

_CONTEXTS = frozenset({"context", "vars", "variables", "global", "globals", "workflow"})


def read_set(reader: Reader, node: Node | None, path: str, *, scopes: tuple[str, ...] = SCOPES) -> list[SetSyntax]:
    """The assignments of a `set` block; `scopes` are those that can be written here."""
    mapping = reader.mapping(node, "`set` block") if node is not None else None
    if mapping is None:
        return []
    found: list[SetSyntax] = []
    for text, (key, value) in mapping.entries.items():
        head, _, rest = text.partition(".")
        if head in SCOPES:
            if rest:
                _assign(reader, found, head, rest, key, value, f"{path}/{text}", scopes)
            elif isinstance(value, Mapping):
                for inner, (inner_key, inner_value) in value.entries.items():
                    _assign(reader, found, head, inner, inner_key, inner_value, f"{path}/{head}.{inner}", scopes)
            else:
                message = f"`{head}` itself cannot be set to {describe_node(value)}"
                reader.add("set-target", key, message, f"set one of its names: `{head}.<name>: ...`")
        elif head in READ_ONLY_SCOPES and (rest or head != "args"):
            hint = "write to " + ", ".join(f"{scope}.*" for scope in scopes)
            reader.add("set-read-only", key, f"`{head}` cannot be written", hint)
        else:
            near = did_you_mean(head, (*scopes, "context"), " ").strip() if rest else ""
            hint = f"write `ctx.{rest}`" if head in _CONTEXTS or '"context"' in near else near or f"write `ctx.{text}`"
            reader.add("set-without-scope", key, f'"{text}" has no scope; it is read as `ctx.{text}`', hint)
            _assign(reader, found, "ctx", text, key, value, f"{path}/ctx.{text}", scopes)
    return found


def read_scoped(reader: Reader, node: Node | None, scope: str, path: str, word: str) -> list[SetSyntax]:
    """Assignments under a key that names the scope: v10's `set_ctx`, `set_iter` and an arc's `args`."""
    mapping = reader.mapping(node, f"`{word}` block") if node is not None else None
    if mapping is None:
        return []
    found: list[SetSyntax] = []
    for text, (key, value) in mapping.entries.items():
        bare = text.removeprefix(f"{scope}.")
        # The path is that of the canonical form, so that migration does not change paths.
        where = f"{path}/args/{bare}" if scope == "args" else f"{path}/set/{scope}.{bare}"
        _assign(reader, found, scope, bare, key, value, where, (*SCOPES, "args"))
    return found


def _assign(
    reader: Reader,
    found: list[SetSyntax],
    scope: str,
    rest: str,
    key: Scalar,
    value: Node,
    path: str,
    scopes: tuple[str, ...],
) -> None:
    keys = tuple(rest.split("."))
    if "{{" in rest or "{%" in rest:
        hint = f'write a mapping as the value: `{scope}.<name>: "{{{{ {{workload.key: 1}} }}}}"`'
        reader.add("set-target", key, f"the name {key.text!r} has a template, which only values can have", hint)
        return
    if not all(keys) or keys[0].startswith((STATE_KEY, STEP_KEY)):
        reader.add("set-target", key, f'"{key.text}" is not a valid target of `set`', f"write `{scope}.<name>`")
        return
    if scope not in scopes:
        hint = "write to " + ", ".join(f"{allowed}.*" for allowed in scopes)
        reader.add("set-target", key, f"`{scope}` cannot be written here", hint)
        return
    for other in found:
        if other.scope == scope and other.keys == keys:
            message = f"`{scope}.{rest}` is set twice in this block"
            reader.add("set-twice", key, message, f"the first one is on line {other.key.line}")
            return
    found.append(SetSyntax(scope, keys, key, value, path))
