"""Read a canonical document: `input`, `output`, `set`, `next.arcs[].set`.

Keys of v10 are read here too, because one document may mix both; the reader reports each of them.
"""

from __future__ import annotations

import re

from noetl.core.language.diagnostics import did_you_mean
from noetl.core.language.source.node_reader import (
    Fields,
    Reader,
    ReplacedKey,
    describe_node,
    is_template,
    shorten,
    text_of,
)
from noetl.core.language.source.nodes import (
    Mapping,
    Node,
    Scalar,
    Sequence,
    data_of,
    mapping_node,
    node_from,
    scalar_node,
)
from noetl.core.language.syntax.grammar import (
    EXTENSIONS,
    ITERATION_NAMES,
    KEYCHAIN_ALIASES,
    KEYCHAIN_KINDS,
    KEYCHAIN_PLUGIN_KINDS,
    SHAPES,
    Key,
    Shape,
)
from noetl.core.language.syntax.placement import check_body, read_placement
from noetl.core.language.syntax.set_blocks import read_scoped, read_set
from noetl.core.language.syntax.tasks import read_output, read_quota, read_sets, read_tool, read_validation, split_rule
from noetl.core.language.syntax.tree import (
    AdmitRuleSyntax,
    AdmitSyntax,
    ArcSyntax,
    BlockSyntax,
    BodySyntax,
    CompensationSyntax,
    DocumentSyntax,
    EmitSyntax,
    ExecutorSyntax,
    KeychainSyntax,
    LoopSyntax,
    RouterSyntax,
    StepSyntax,
    SynthesisSyntax,
)
from noetl.core.model.playbook import Playbook

_CONTROL = ReplacedKey(
    "control-outside-task",
    "task rules are valid only under a task's `spec.policy.rules`",
    "move the rules to the task they apply to",
)

# Keys that no dialect supports, and their replacements.
REJECTED: dict[tuple[str, str], ReplacedKey] = {
    ("playbook", "vars"): ReplacedKey(
        "root-vars",
        "a playbook has no root `vars`",
        "put input with defaults under `workload`, and values that change under `set: {ctx.<name>: ...}`",
    ),
    ("loop", "cursor"): ReplacedKey(
        "unknown-key",
        "a loop has no `cursor`: rows are claimed by a step of their own",
        "rewrite it as two steps: `- step: claim` with `tool: {kind: ..., auth: ..., command: <the claim>}`, and this "
        'step with `loop: {in: "{{ claim.rows }}", iterator: ...}`; while rows may be left, lead an arc back to '
        '`claim`, and guard the arc of `claim` that leads here with `when: "{{ claim.row_count > 0 }}"`',
    ),
    ("step.policy", "rules"): _CONTROL,
    ("loop.policy", "rules"): _CONTROL,
    ("executor.policy", "rules"): _CONTROL,
}


def read_document(reader: Reader, root: Node) -> DocumentSyntax | None:
    """Read a whole playbook."""
    if not isinstance(root, Mapping):
        hint = "a playbook starts with `apiVersion: noetl.io/v2`"
        reader.add("not-a-playbook", root, f"a playbook must be a mapping, not {describe_node(root)}", hint)
        return None
    fields = reader.shape(root, "playbook")
    document = DocumentSyntax(root)
    _read_metadata(reader, document, fields)
    if "workload" in fields and not _is_empty(fields["workload"][1]):
        document.workload = reader.mapping(fields["workload"][1], "workload")
    if "executor" in fields and not _is_empty(fields["executor"][1]):
        document.executor = _read_executor(reader, fields["executor"][1])
    if "keychain" in fields and not _is_empty(fields["keychain"][1]):
        document.keychain = _read_keychain(reader, fields["keychain"][1])
    if "workbook" in fields and not _is_empty(fields["workbook"][1]):
        document.blocks = _read_workbook(reader, fields["workbook"][1])
    if "workflow" in fields:
        document.steps = read_steps(reader, fields["workflow"][1], "workflow")
    return document


def document_for(playbook: Playbook) -> DocumentSyntax:
    """An empty document for steps that will join a running playbook."""
    return DocumentSyntax(mapping_node({}, node_from(None)), surface=playbook.surface, running=playbook)


def _is_empty(node: Node) -> bool:
    return isinstance(node, Scalar) and node.value is None


def _read_metadata(reader: Reader, document: DocumentSyntax, fields: Fields) -> None:
    if "metadata" not in fields:
        return
    node = fields["metadata"][1]
    metadata = reader.shape(node, "metadata")
    document.metadata = node if isinstance(node, Mapping) else None
    document.name = (text_of(metadata["name"][1]) if "name" in metadata else None) or ""
    document.catalog_path = (text_of(metadata["path"][1]) if "path" in metadata else None) or document.name
    for word in ("name", "path"):
        value = metadata[word][1] if word in metadata else None
        if isinstance(value, Scalar) and isinstance(value.value, bool | int | float):
            hint = f'write it in quotes: `{word}: "{value.text}"`'
            reader.add("wrong-type", value, f"`{word}` must be text, not {describe_node(value)}", hint)
        elif isinstance(value, Scalar) and not value.text.isprintable():
            reader.add("wrong-value", value, f"`{word}` has a line break or control character", "write it on one line")
    path = metadata["path"][1] if "path" in metadata else None
    if isinstance(path, Scalar) and not text_of(path):
        reader.add("wrong-value", path, "`path` is empty", "write a path, or remove the key: the name is used")
    document.version = text_of(metadata["version"][1]) if "version" in metadata else None
    for key, (key_node, _) in metadata.items():
        known = SHAPES["metadata"].keys
        hint = did_you_mean(key, known, " ").strip() if key not in known else ""
        if hint:
            reader.add("unknown-spec-key", key_node, f"`metadata.{key}` has no effect", hint)
    tags = metadata["tags"][1] if "tags" in metadata else None
    if tags is not None and not isinstance(tags, Mapping):
        reader.texts(tags, "`tags`")
    described = metadata.get("description") or metadata.get("desc")
    document.description = (text_of(described[1]) if described else None) or ""


# --- executor and keychain ----------------------------------------------------------------------


def _read_executor(reader: Reader, node: Node) -> ExecutorSyntax:
    fields = reader.shape(node, "executor")
    executor = ExecutorSyntax(node, "executor")
    executor.profile = (text_of(fields["profile"][1]) if "profile" in fields else None) or "auto"
    if "version" in fields:
        executor.version_node = fields["version"][1]
        executor.version = text_of(executor.version_node)
    if "spec" not in fields or _is_empty(fields["spec"][1]):
        return executor
    spec = reader.shape(fields["spec"][1], "executor.spec")
    executor.spec = fields["spec"][1] if isinstance(fields["spec"][1], Mapping) else None
    for word in ("entry_step", "return_step"):
        if word in spec:
            setattr(executor, word, spec[word][1])
    if "extensions" in spec:
        texts = reader.texts(spec["extensions"][1], "`extensions`")
        executor.extensions = tuple(text.text for text in texts if reader.check_choice(text, "extensions", EXTENSIONS))
    executor.placement = read_placement(reader, spec)
    if "tracing" in spec:
        executor.tracing = _read_tracing(reader, spec["tracing"][1])
    if "state" in spec:
        state = reader.shape(spec["state"][1], "executor.state")
        executor.state_commit = (text_of(state["commit"][1]) if "commit" in state else None) or "execution"
    if "policy" in spec:
        policy = reader.shape(spec["policy"][1], "executor.policy")
        defaults = read_placement(reader, policy)
        executor.placement.labels = {**defaults.labels, **executor.placement.labels}
        if "results" in policy:
            results = reader.shape(policy["results"][1], "results")
            executor.reference_first = "reference_first" in results and data_of(results["reference_first"][1])
        if "limits" in policy:
            limits = reader.shape(policy["limits"][1], "limits")
            executor.limits = {key: value.value for key, (_, value) in limits.items() if isinstance(value, Scalar)}
        if "defaults" in policy:
            executor.defaults = reader.mapping(policy["defaults"][1], "`defaults` block")
    return executor


def _read_tracing(reader: Reader, node: Node) -> dict[str, Node]:
    fields = {key: value for key, (_, value) in reader.shape(node, "tracing").items()}
    attributes = reader.mapping(fields.get("attributes"), "`attributes` block")
    for name, (_, value) in attributes.entries.items() if attributes is not None else ():
        if not isinstance(value, Scalar) or value.value is None:
            message = f"the attribute `{name}` must be text, a number or a boolean, not {describe_node(value)}"
            reader.add("wrong-type", value, message, "write one value per attribute")
    return fields


def _read_keychain(reader: Reader, node: Node) -> list[KeychainSyntax]:
    entries: list[KeychainSyntax] = []
    seen: dict[str, Node] = {}
    for number, item in enumerate(reader.sequence(node, "the keychain", "name: ...")):
        _rename_key(reader, item, "type", "kind")
        fields = reader.shape(item, "keychain")
        if "name" not in fields or "kind" not in fields:
            continue
        name_node, kind_node = fields["name"][1], fields["kind"][1]
        name, kind = reader.name(name_node, "keychain entry"), text_of(kind_node)
        if name is None or kind is None:
            continue
        if name in seen:
            message = f'duplicate keychain entry "{name}"'
            reader.add("duplicate-keychain", name_node, message, f"the first one is on line {seen[name].line}")
        seen.setdefault(name, name_node)
        rest = {key: value for key, (_, value) in fields.items() if key not in ("name", "kind")}
        entry = KeychainSyntax(item, f"keychain/{number}", name, name_node, kind, kind_node, rest)
        _check_keychain(reader, entry, fields)
        entries.append(entry)
    return entries


def _rename_key(reader: Reader, node: Node, old: str, new: str) -> None:
    """Read an old spelling of a key as the key, with a warning."""
    if not isinstance(node, Mapping) or old not in node.entries or new in node.entries:
        return
    key, value = node.entries.pop(old)
    reader.add("old-spelling", key, f"`{old}` is an old spelling of `{new}`", f"write `{new}`")
    node.entries[new] = (key, value)


_TOKEN_METHODS = ("POST", "GET", "PUT")


def _check_keychain_text(reader: Reader, kind: str, key: str, value: Scalar, known: Key) -> None:
    """Report an empty required field, and an address that is no URL."""
    if (known.required or key == "var") and not value.text.strip():
        reader.add("wrong-value", value, f"`{key}` of a keychain entry of kind {kind} is empty", known.doc)
    elif key == "var" and ("=" in value.text or any(letter.isspace() for letter in value.text)):
        message = f'"{shorten(value.text)}" is not the name of an environment variable'
        reader.add("wrong-value", value, message, known.doc)
    elif key == "method" and value.text.upper() not in _TOKEN_METHODS:
        reader.check_choice(value, key, _TOKEN_METHODS)
    elif key == "token_url" and not re.match(r"https?://[^/]", value.text):
        message = f'`{key}` must be a URL of http or https, not "{value.text}"'
        reader.add("wrong-value", value, message, "write the whole URL: `https://host/path`")


def _check_keychain(reader: Reader, entry: KeychainSyntax, fields: Fields) -> None:
    written = entry.kind
    if written in KEYCHAIN_PLUGIN_KINDS:
        message = f'the keychain kind "{written}" needs a plug-in that is not installed; every request will fail'
        reader.add("plugin-kind", entry.kind_node, message, "use another kind, such as `oauth2` or `credential`")
        return
    kind = KEYCHAIN_ALIASES.get(written, written)
    if written in KEYCHAIN_ALIASES:
        reader.add(
            "old-spelling",
            entry.kind_node,
            f"the keychain kind `{written}` is an old spelling of `{kind}`",
            f"write `kind: {kind}`",
        )
    if kind not in KEYCHAIN_KINDS and kind.endswith(("_credential", "_oauth", "_service_account")):
        kind = "credential"
        if "ref" in entry.fields:
            entry.fields["credential"] = entry.fields.pop("ref")
    if kind not in KEYCHAIN_KINDS:
        hint = did_you_mean(written, [*KEYCHAIN_KINDS, *KEYCHAIN_ALIASES], "known kinds: " + ", ".join(KEYCHAIN_KINDS))
        reader.add("unknown-keychain-kind", entry.kind_node, f'unknown keychain kind "{written}"', hint)
        return
    entry.kind = kind
    _normalize_oauth2(reader, entry, fields)
    keys = KEYCHAIN_KINDS[kind]
    shape = Shape("keychain." + kind, kind, "", keys, noun=f"keychain entry of kind {kind}")
    for key, value in list(entry.fields.items()):
        known = keys.get(key)
        if known is None:
            hint = did_you_mean(key, keys, "valid fields: " + ", ".join(keys))
            message = f'a keychain entry of kind {kind} has no field "{key}"'
            place = fields[key][0] if key in fields else value  # a field of the token request's `data`
            reader.add("unknown-keychain-field", place, message, hint)
        elif not reader.check_type(value, known, key):
            del entry.fields[key]
        elif isinstance(value, Scalar) and not is_template(value):
            _check_keychain_text(reader, entry.kind, key, value, known)
    for key, known in keys.items():
        if known.required and key not in entry.fields and key not in fields:
            reader.report_missing(entry.node, key, known, shape)
    if kind == "env" and not {"var", "vars"} & set(entry.fields):
        reader.add(
            "missing-key", entry.node, "a keychain entry of kind env requires `var` or `vars`", "add `var: NAME`"
        )
    if kind == "env" and {"var", "vars"} <= set(entry.fields):
        message = "a keychain entry of kind env has either `var` or `vars`"
        reader.add("wrong-value", fields["vars"][0], message, "remove one of them")
    if kind == "static":
        hint = "store real secrets in the credential store, the environment or a secret manager"
        reader.add(
            "static-secret",
            entry.kind_node,
            "a static secret is part of the playbook's text; use it in tests only",
            hint,
        )


def _normalize_oauth2(reader: Reader, entry: KeychainSyntax, fields: Fields) -> None:
    """Rename `endpoint` to `token_url`, and move the fields of the token request's `data` to the entry."""
    if entry.kind != "oauth2":
        return
    if "endpoint" in entry.fields and "token_url" not in entry.fields:
        reader.add(
            "old-spelling", fields["endpoint"][0], "`endpoint` is an old spelling of `token_url`", "write `token_url`"
        )
        entry.fields["token_url"] = entry.fields.pop("endpoint")
    data = entry.fields.get("data")
    if isinstance(data, Mapping) and {"client_id", "client_secret"} & set(data.entries):
        message = "the fields of the token request's `data` belong to the entry itself"
        reader.add(
            "old-spelling", fields["data"][0], message, "write `client_id`, `client_secret` and `scope` beside `kind`"
        )
        for key, (_, value) in data.entries.items():
            if key != "grant_type":
                entry.fields.setdefault(key, value)
        del entry.fields["data"]


# --- steps and blocks ---------------------------------------------------------------------------


def read_steps(reader: Reader, node: Node, path: str) -> list[StepSyntax]:
    """The steps of a workflow (or of a synthesized list)."""
    steps: list[StepSyntax] = []
    seen: dict[str, Node] = {}
    items = reader.sequence(node, "the workflow", "step: ...")
    if isinstance(node, Sequence) and not items:
        reader.add("empty-workflow", node, "the workflow has no steps", "add `- step: start` with `tool` or `next`")
    for number, item in enumerate(items):
        step = _read_step(reader, item, f"{path}/{number}")
        if step is None:
            continue
        first = seen.get(step.name)
        if first is not None:
            message = f'duplicate step "{step.name}"'
            reader.add("duplicate-step", step.name_node, message, f"the first one is on line {first.line}")
        else:
            seen[step.name] = step.name_node
        steps.append(step)
    return steps


def _read_step(reader: Reader, node: Node, path: str) -> StepSyntax | None:
    if isinstance(node, Mapping) and "step" not in node.entries and "name" in node.entries:
        reader.add("missing-key", node.entries["name"][0], "a step is named with `step`, not `name`", "write `step:`")
        return None
    fields = reader.shape(node, "step")
    if "step" not in fields:
        return None
    name_node = fields["step"][1]
    name = reader.name(name_node, "step")
    if name is None:
        return None
    step = StepSyntax(node, path, name, name_node)
    described = fields.get("desc") or fields.get("description")
    step.description = (text_of(described[1]) if described else None) or ""
    _read_body(reader, step, fields)
    step.output = read_output(reader, fields, path)
    step.validation = read_validation(reader, step.spec, step.output, path)
    if "next" in fields:
        step.router = _read_router(reader, fields["next"][1], f"{path}/next")
    reported = isinstance(node, Mapping) and any(key not in SHAPES["step"].keys for key in node.entries)
    if not step.has_tool and "next" not in fields and not reported:
        hint = "add `tool` or `next`, or remove the step" if not step.sets else "add `tool: {kind: noop}`"
        reader.add("step-without-body", name_node, f'the step "{name}" has neither `tool` nor `next`', hint)
    return step


def _read_body(reader: Reader, body: BodySyntax, fields: Fields) -> None:
    """Read the common part of steps and blocks."""
    for old in ("args",):
        if old in fields and "input" in fields:
            reader.add("parameter-twice", fields[old][0], "both `args` and `input` are given", "`input` is used")
        elif old in fields:
            fields["input"] = fields[old]
    if "input" in fields and not _is_empty(fields["input"][1]):
        body.input = reader.mapping(fields["input"][1], "`input` block")
    if "loop" in fields:
        body.loop = _read_loop(reader, fields["loop"][1], f"{body.path}/loop")
    if "spec" in fields:
        _read_step_spec(reader, body, fields["spec"][1])
    if "tool" in fields:
        body.has_tool = True
        body.items = read_tool(reader, fields["tool"][1], body.name, f"{body.path}/tool")
        check_body(reader, body)
    body.sets = read_sets(reader, fields, body.path)


_PERCENT = re.compile(r"\d+(\.\d+)?\s*%")


def _read_max_failed(reader: Reader, node: Node, mode: str) -> int | str | None:
    """`max_failed`: a number of iterations, or a share of them."""
    value = node.value if isinstance(node, Scalar) else None
    if mode != "best_effort":
        message = "`max_failed` has no effect: this loop stops at its first failure"
        reader.add("unused-field", node, message, "write `mode: best_effort`, or remove it")
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str) and _PERCENT.fullmatch(value.strip()) and float(value.strip().rstrip("% ")) <= 100:
        return value.strip()
    shown = describe_node(node) if value is None else f"`{value}`"
    reader.add("wrong-type", node, f'`max_failed` must be a whole number or a share such as "5%", not {shown}')
    return None


def _read_step_spec(reader: Reader, body: BodySyntax, node: Node) -> None:
    if _is_empty(node):
        return
    fields = reader.shape(node, "step.spec")
    if not isinstance(node, Mapping):
        return
    body.spec, body.spec_path = node, f"{body.path}/spec"
    if "set" in node.entries:
        reader.add("set-under-spec", node.entries["set"][0], "`set` is not valid under `spec`", "move it beside `step`")
    placement = read_placement(reader, fields)
    if isinstance(body, StepSyntax):
        body.placement = placement
    if "policy" not in fields or _is_empty(fields["policy"][1]):
        return
    path = f"{body.path}/spec/policy"
    policy = reader.shape(fields["policy"][1], "step.policy")
    if "lifecycle" in policy:
        lifecycle = reader.shape(policy["lifecycle"][1], "lifecycle")
        body.timeout_s = lifecycle["timeout_s"][1] if "timeout_s" in lifecycle else None
        body.deadline_s = lifecycle["deadline_s"][1] if "deadline_s" in lifecycle else None
    if "failure" in policy:
        failure = reader.shape(policy["failure"][1], "failure")
        if body.loop is None and failure:
            message = "`failure` has no effect: it decides about failed iterations, and there is no loop"
            reader.add("unused-field", policy["failure"][0], message, "remove it, or add a `loop`")
        body.failure = (text_of(failure["mode"][1]) if "mode" in failure else None) or "fail_fast"
        if "max_failed" in failure:
            body.max_failed = _read_max_failed(reader, failure["max_failed"][1], body.failure)
    for word in () if isinstance(body, StepSyntax) else ("compensation", "quotas"):
        if word in policy:
            message = f"`{word}` belongs to a step; in a workbook block it has no effect"
            reader.add("unused-field", policy[word][0], message, "move it to the steps that call the block")
    if isinstance(body, StepSyntax):
        _read_step_policy(reader, body, policy, path)


def _read_step_policy(reader: Reader, body: StepSyntax, policy: Fields, path: str) -> None:
    """The policies that only steps have."""
    if "admit" in policy:
        body.admit = _read_admit(reader, policy["admit"][1], f"{path}/admit")
    if "quotas" in policy:
        body.quota = read_quota(reader, policy["quotas"][1], f"{path}/quotas")
    if "emit" in policy:
        body.emits = _read_emits(reader, policy["emit"][1], f"{path}/emit/events")
    if "compensation" in policy:
        body.compensation = _read_compensation(reader, body, policy["compensation"][1], f"{path}/compensation")
    if "synthesize" in policy:
        body.synthesis = _read_synthesis(reader, policy["synthesize"][1], f"{path}/synthesize")


def _read_emits(reader: Reader, node: Node, path: str) -> list[EmitSyntax]:
    fields = reader.shape(node, "emit")
    found = []
    for number, item in enumerate(
        reader.sequence(fields["events"][1], "`events`", "name: ...") if "events" in fields else ()
    ):
        entry = reader.shape(item, "emit.event")
        name = reader.name(entry["name"][1], "event") if "name" in entry else None
        if name is not None:
            payload = entry["payload"][1] if "payload" in entry else None
            when = entry["when"][1] if "when" in entry else None
            found.append(EmitSyntax(item, f"{path}/{number}", name, payload, when))
    return found


def _read_compensation(reader: Reader, step: StepSyntax, node: Node, path: str) -> CompensationSyntax:
    fields = reader.shape(node, "compensation")
    body = CompensationSyntax(node, path, step.name, step.name_node)
    body.when = fields["when"][1] if "when" in fields else None
    if "tool" in fields:
        body.has_tool = True
        body.items = read_tool(reader, fields["tool"][1], "compensation", f"{path}/tool")
        check_body(reader, body)
    return body


def _read_admit(reader: Reader, node: Node, path: str) -> AdmitSyntax:
    fields = reader.shape(node, "admit")
    admit = AdmitSyntax(node, path)
    admit.on_deny = (text_of(fields["on_deny"][1]) if "on_deny" in fields else None) or "park"
    admit.join = (text_of(fields["join"][1]) if "join" in fields else None) or "all"
    once = fields["once"][1] if "once" in fields else None
    admit.once = isinstance(once, Scalar) and once.value is True
    if "rules" in fields:
        for number, item in enumerate(reader.sequence(fields["rules"][1], "`rules`", "when: ...")):
            rule = _read_admit_rule(reader, item, f"{path}/rules/{number}")
            if rule is not None:
                admit.rules.append(rule)
    return admit


def _read_admit_rule(reader: Reader, node: Node, path: str) -> AdmitRuleSyntax | None:
    parts = split_rule(reader, node, "admit.rule", "allow")
    if parts is None:
        return None
    when, is_else, then = parts
    fields = reader.shape(then, "admit.then")
    return AdmitRuleSyntax(node, path, when, is_else, fields["allow"][1] if "allow" in fields else None)


def _read_synthesis(reader: Reader, node: Node, path: str) -> SynthesisSyntax:
    if isinstance(node, Scalar) and node.value is not None:
        _check_source(reader, node)
        return SynthesisSyntax(node, path, node)
    fields = reader.shape(node, "synthesize")
    synthesis = SynthesisSyntax(node, path, fields["from"][1] if "from" in fields else None)
    _check_source(reader, synthesis.source)
    if "limits" in fields:
        limits = reader.shape(fields["limits"][1], "synthesize.limits")
        if "steps" in limits and isinstance(limits["steps"][1], Scalar):
            synthesis.max_steps = limits["steps"][1].value
        if "kinds" in limits:
            synthesis.kinds = tuple(text.text for text in reader.texts(limits["kinds"][1], "`kinds`"))
    return synthesis


def _check_source(reader: Reader, node: Node | None) -> None:
    """The steps come from a template: plain text is never a list of steps."""
    if node is not None and not is_template(node):
        message = f"synthesized steps come from a template, not {describe_node(node)}"
        reader.add("wrong-value", node, message, 'write `from: "{{ output.data }}"`')


def _read_loop(reader: Reader, node: Node, path: str) -> LoopSyntax | None:
    refused = isinstance(node, Mapping) and "cursor" in node.entries
    fields = reader.shape(node, "loop", reported=("in",) if refused else ())
    if not isinstance(node, Mapping):
        return None
    loop = LoopSyntax(node, path)
    if "in" in fields:
        loop.collection = fields["in"][1]
        _check_collection(reader, loop.collection)
    if "iterator" in fields:
        iterator_node = fields["iterator"][1]
        loop.iterator = reader.name(iterator_node, "iterator")
        if loop.iterator in ITERATION_NAMES:
            message = f"`iter.{loop.iterator}` is reserved: the iterator cannot have this name"
            reader.add("reserved-name", iterator_node, message, "choose another name")
    if "spec" in fields and not refused:
        _read_loop_spec(reader, loop, fields["spec"][1])
    if "loop" in fields:
        loop.inner = _read_loop(reader, fields["loop"][1], f"{path}/loop")
    return loop


def _check_collection(reader: Reader, node: Node) -> None:
    if isinstance(node, Scalar) and (not isinstance(node.value, str) or "{" not in node.value):
        message = f"a loop iterates over a list or a mapping, not {describe_node(node)}"
        reader.add("loop-collection", node, message, 'write a list, or a template like "{{ workload.items }}"')


def _read_loop_spec(reader: Reader, loop: LoopSyntax, node: Node) -> None:
    if _is_empty(node):
        return
    fields = reader.shape(node, "loop.spec")
    if not isinstance(node, Mapping):
        return
    loop.spec, loop.spec_path = node, f"{loop.path}/spec"
    policy = (
        reader.shape(fields["policy"][1], "loop.policy")
        if "policy" in fields and not _is_empty(fields["policy"][1])
        else {}
    )
    for word in ("mode", "max_in_flight"):
        if word in policy:
            reader.add(
                "old-spelling", policy[word][0], f"`{word}` belongs under `loop.spec`", f"write `loop.spec.{word}`"
            )
    mode = fields.get("mode") or policy.get("mode")
    loop.mode = (text_of(mode[1]) if mode else None) or ("sequential" if "mode" not in node.entries else "")
    cap = fields.get("max_in_flight") or policy.get("max_in_flight")
    loop.max_in_flight = cap[1] if cap else None
    loop.until = fields["until"][1] if "until" in fields else None
    loop.exec = text_of(policy["exec"][1]) if "exec" in policy else None
    if "reduce" in policy:
        loop.reduce = reader.mapping(policy["reduce"][1], "`reduce` block")


def _read_router(reader: Reader, node: Node, path: str) -> RouterSyntax | None:
    if isinstance(node, Sequence) and reader.report_rejected("step", "next[]", node):
        return None
    if not isinstance(node, Mapping):
        message = f"`next` must be a mapping with `arcs`, not {describe_node(node)}"
        target = shorten(node.text) if isinstance(node, Scalar) and node.value else "..."
        reader.add("next-shape", node, message, f"write `next: {{arcs: [{{step: {target}}}]}}`")
        return None
    if "arcs" not in node.entries and "step" in node.entries:
        reader.add(
            "next-shape",
            node.entries["step"][0],
            "the targets of `next` belong under `arcs`",
            f"write `next: {{arcs: [{{step: {shorten(text_of(node.entries['step'][1]) or '...')}}}]}}`",
        )
        return None
    fields = reader.shape(node, "next")
    router = RouterSyntax(node, path)
    defaults: Fields = {}
    if "spec" in fields and not _is_empty(fields["spec"][1]):
        spec = reader.shape(fields["spec"][1], "next.spec")
        defaults = reader.shape(spec["policy"][1], "arc.spec") if "policy" in spec else {}
        router.mode = (text_of(spec["mode"][1]) if "mode" in spec else None) or "exclusive"
    if "arcs" in fields:
        for number, item in enumerate(reader.sequence(fields["arcs"][1], "`arcs`", "step: ...")):
            router.arcs.append(_read_arc(reader, item, f"{path}/arcs/{number}", defaults))
    return router


def _read_arc(reader: Reader, node: Node, path: str, defaults: Fields) -> ArcSyntax:
    fields = reader.shape(node, "arc")
    arc = ArcSyntax(node, path)
    if "step" in fields:
        arc.target_node = fields["step"][1]
        arc.target = text_of(arc.target_node)
    arc.when = fields["when"][1] if "when" in fields else None
    spec = {**defaults, **(reader.shape(fields["spec"][1], "arc.spec") if "spec" in fields else {})}
    arc.dedupe = spec["dedupe"][1] if "dedupe" in spec else None
    arc.partition = spec["partition"][1] if "partition" in spec else None
    arc.priority = spec["priority"][1] if "priority" in spec else None
    if "args" in fields:
        arc.sets += read_scoped(reader, fields["args"][1], "args", path, "args")
    if "set" in fields:
        arc.sets += read_set(reader, fields["set"][1], f"{path}/set", scopes=("ctx", "state"))
    return arc


# --- workbook -----------------------------------------------------------------------------------


def _read_workbook(reader: Reader, node: Node) -> list[BlockSyntax]:
    blocks: list[BlockSyntax] = []
    seen: dict[str, Node] = {}
    entries: list[tuple[Node | None, Node, str]] = []
    if isinstance(node, Mapping):
        entries = [(key, value, f"workbook/{name}") for name, (key, value) in node.entries.items()]
    else:
        for number, item in enumerate(reader.sequence(node, "the workbook")):
            mapping = reader.mapping(item, "workbook block")
            if mapping is not None and "name" not in mapping.entries:
                reader.report_missing(mapping, "name", SHAPES["block"].keys["name"], SHAPES["block"])
            elif mapping is not None:
                name = mapping.entries["name"][1]
                entries.append((name, mapping, f"workbook/{text_of(name) or number}"))
    for name_node, value, path in entries:
        block = _read_block(reader, name_node, value, path)
        if block is None:
            continue
        if block.name in seen:
            message = f'duplicate workbook block "{block.name}"'
            reader.add("duplicate-block", block.name_node, message, f"the first one is on line {seen[block.name].line}")
        seen.setdefault(block.name, block.name_node)
        blocks.append(block)
    return blocks


def _read_block(reader: Reader, name_node: Node | None, node: Node, path: str) -> BlockSyntax | None:
    name = reader.name(name_node, "workbook block")
    mapping = reader.mapping(node, "workbook block")
    if name is None or mapping is None or name_node is None:
        return None
    block = BlockSyntax(mapping, path, name, name_node)
    if "kind" in mapping.entries and "tool" not in mapping.entries:
        block.has_tool = True
        block.items = read_tool(reader, mapping, name, f"{path}/tool")
        _declare_parameters(block)
        return block
    fields = reader.shape(mapping, "block")
    described = fields.get("desc")
    block.description = (text_of(described[1]) if described else None) or ""
    if "tool" not in fields:
        reader.report_missing(mapping, "tool", SHAPES["block"].keys["tool"], SHAPES["block"])
    elif fields["tool"][0].text != "tool":
        del fields["tool"]  # a replaced key, already reported
    _read_body(reader, block, fields)
    _declare_parameters(block)
    return block


def _declare_parameters(block: BlockSyntax) -> None:
    """Read `input: {name: null}` of a block's task as a parameter of the block: the call gives its value."""
    for task in block.tasks():
        own = task.tool.fields if task.tool is not None else {}
        for name, parameter in task.parameters.items():
            if name not in own and _is_empty(parameter.value) and name.isidentifier():
                parameter.value = scalar_node(f"{{{{ input.{name} | default(none) }}}}", parameter.value)
