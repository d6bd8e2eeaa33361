"""Random playbooks of the older dialects, written in random styles: comments everywhere, flow and block, anchors."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import yaml

Data = Any

READS = {
    "worker": ["outcome.status == 'ok'", "outcome.result.n > 1", "outcome['result'].n", "outcome.http.status", "args.n",
               "outcome.result.data.n | default(0)", "args['n'] + 1", "_attempt < 3", "[outcome.result.n, 'outcome', args.n]"],
    "server": ["args.n", "args['n'] + 1"],
    "arc": ["outcome.status == 'ok'", "outcome.result.n", "args.n", "event.name == 'step.done'"],
    "end": ["outcome.status == 'ok'", "outcome.result.n", "args.n"],
    "any": ["ctx.seen | default(0)", "workload.x", "x", "label ~ '#no comment: '", "seen | default(1)", "rows | length", "x > 1 and x < 9",
            "execution_id"],
}  # fmt: skip
LEGACY_READS = [
    "context.workload.x", "context.workload.rows[0]", "context.answer.n | default(0)", "workload.label", "answer", "x",
    "context.seen | default(1)", "rows | length", "context['workload'].x if false else 1",
]  # fmt: skip
TEXTS = [
    "plain",
    "it's",
    'say "hi"',
    "a: b",
    "# no",
    "- dash",
    "é ü 漢字",
    "true",
    "12",
    "",
    "a, [b] {c}",
    "x # y",
    "trailing\\",
    "tab\there",
]


class Playbooks:
    """Builds the data of one playbook."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def maybe(self, likely: float, **entries: Data) -> dict[str, Data]:
        return {key.rstrip("_"): value for key, value in entries.items()} if self.rng.random() < likely else {}

    def one(self, *choices: Callable[[], Data]) -> Data:
        return self.rng.choice(choices)()

    def shuffled(self, entries: dict[str, Data], first: str) -> dict[str, Data]:
        """The entries in random order, one of them mostly first."""
        names = [name for name in entries if name != first]
        if self.rng.random() < 0.4:
            self.rng.shuffle(names)
        return {name: entries[name] for name in (first, *names) if name in entries}

    def value(self, where: str) -> Data:
        draw = self.rng.random()
        if draw < 0.55:
            return self.template(where)
        if draw < 0.7:
            return self.rng.choice(TEXTS)
        if draw < 0.8:
            return "\n".join(["first # line", "", "  {{ workload.x }} indented", "last"]) + self.rng.choice(["", "\n"])
        if draw < 0.9:
            return [self.template(where), {"k": self.template(where)}]
        return self.rng.choice([1, -2.5, None, True, [], {}])

    def template(self, where: str) -> str:
        raise NotImplementedError

    # --- the head ---

    def head(self) -> dict[str, Data]:
        return {
            "apiVersion": "noetl.io/v2", "kind": "Playbook", "metadata": {"name": "p", **self.maybe(0.3, path="a/b")},
            "workload": {"x": 1, "rows": [1, 2], "label": "l", **self.maybe(0.3, more={"deep": [1, {"er": 2}]})},
        }  # fmt: skip


class V10(Playbooks):
    """The v10 dialect."""

    def template(self, where: str) -> str:
        return f"{{{{ {self.rng.choice([*READS[where], *READS['any']])} }}}}"

    def document(self) -> dict[str, Data]:
        count = self.rng.randrange(1, 4)
        steps = [self.step(number, count) for number in range(count)]
        block = {**self.maybe(0.5, args={"n": 1}), "tool": self.tasks(looping=False)}
        return {**self.head(), **self.maybe(0.4, workbook={"b": block}), "workflow": steps}

    def step(self, number: int, count: int) -> dict[str, Data]:
        looping = self.rng.random() < 0.4
        arcs = [self.arc(number, count) for _ in range(self.rng.randrange(1, 3))]
        step = {
            "step": f"s{number}",
            **self.maybe(0.2, desc=self.rng.choice(TEXTS) or "d"),
            "args": {"n": self.value("server"), **self.maybe(0.3, odd=self.value("server"))},
            **({"loop": {"in": "{{ workload.rows }}", "iterator": "row"}} if looping else {}),
            "tool": self.tasks(looping),
            **self.maybe(0.3, set=self.sets("end")),
            **({"next": {**self.maybe(0.4, spec={"mode": "inclusive"}), "arcs": arcs}} if number + 1 < count else {}),
        }
        return self.shuffled(step, "step")

    def arc(self, number: int, count: int) -> dict[str, Data]:
        arc = {
            "step": f"s{self.rng.randrange(number + 1, count)}" if number + 1 < count else f"s{number}",
            **self.maybe(0.5, when=self.template("arc")),
            **self.maybe(0.3, args={"seen_by": self.value("arc")}),
            **self.maybe(0.2, set={"ctx.seen": self.value("arc")}),
        }
        return self.shuffled(arc, "step")

    def tasks(self, looping: bool) -> Data:
        made = [self.item(f"t{number}", looping) for number in range(self.rng.randrange(1, 4))]
        if self.rng.random() < 0.15:
            body = [self.item("inner", looping)]
            made.append({"choose": [{"when": self.template("worker"), "then": body}, self.rng.choice([
                {"else": {"then": [{"other": {"kind": "noop"}}]}}, {"else": None, "then": [{"other": {"kind": "noop"}}]}])]})  # fmt: skip
        return made

    def item(self, name: str, looping: bool) -> dict[str, Data]:
        task = self.task(looping)
        draw = self.rng.random()
        if draw < 0.6:
            return {name: task}
        if task["kind"] == "workbook":
            task["block"] = task.pop("name", None) or task["block"]
        return self.shuffled({"name": name, **task}, "name")

    def task(self, looping: bool) -> dict[str, Data]:
        kinds = [{"kind": "noop"}, {"kind": "http", "url": "u"}, {"kind": "postgres", "command": "SELECT 1"}]
        rules = [self.rule(looping) for _ in range(self.rng.randrange(0, 3))]
        if rules and self.rng.random() < 0.7:
            rules.append(self.other(looping))
        task = {
            **self.rng.choice(kinds),
            **self.maybe(0.5, args={"n": self.value("worker"), **self.maybe(0.3, **{"odd key": 1})}),
            **self.maybe(0.3, set=self.sets("worker")),
            **({"spec": {"policy": {"rules": rules}}} if rules else {}),
        }
        return self.shuffled(task, "kind")

    def rule(self, looping: bool) -> dict[str, Data]:
        return self.shuffled({"when": self.template("worker"), "then": self.then(looping)}, "when")

    def other(self, looping: bool) -> dict[str, Data]:
        then = self.then(looping)
        return self.rng.choice([{"else": {"then": then}}, {"else": None, "then": then}, {"else": then}])

    def then(self, looping: bool) -> dict[str, Data]:
        then = {
            "do": self.rng.choice(["continue", "break", "fail"]),
            **self.maybe(0.5, set_ctx={"seen": self.value("worker"), **self.maybe(0.3, **{"b.c": 2})}),
            **(self.maybe(0.5, set_iter={"last": self.value("worker"), "odd key": 1}) if looping else {}),
            **self.maybe(0.3, set={"ctx.other": self.value("worker")}),
        }
        return self.shuffled(then, "do")

    def sets(self, where: str) -> dict[str, Data]:
        return self.rng.choice(
            [
                {"ctx": {"a": self.value(where), "b": 2}},
                {"ctx.a": self.value(where), "ctx": {"b": 1}},
                {"ctx.a": self.value(where)},
                {"step": {"c": self.value(where)}, "ctx.a": 1},
                {"bare": self.value(where), "ctx.a": 2},
            ]
        )


class Legacy(Playbooks):
    """The 2025-11 dialect."""

    def template(self, where: str) -> str:
        return f"{{{{ {self.rng.choice(LEGACY_READS)} }}}}"

    def document(self) -> dict[str, Data]:
        count = self.rng.randrange(1, 4)
        executor = {
            "spec": {"extensions": ["legacy"], **self.maybe(0.3, entry_step="s0")},
            **self.maybe(0.3, profile="local"),
        }
        block = self.rng.choice([
            {"name": "b", "tool": {"kind": "noop", "spec": {}}}, {"name": "b", "kind": "http", "spec": {"url": "u"}},
            {"name": "b", "tool": {"kind": "noop", "result": "r"}, "desc": "d"}])  # fmt: skip
        return {
            **self.head(),
            **self.maybe(0.4, executor=executor),
            **self.maybe(0.3, workbook=[block]),
            "workflow": [self.step(number, count) for number in range(count)],
        }

    def step(self, number: int, count: int) -> dict[str, Data]:
        looping = self.rng.random() < 0.35
        loop = {
            "collection": "{{ context.workload.rows }}",
            "element": "row",
            **self.maybe(0.5, mode="sequential", until="{{ row > 1 }}"),
        }
        following = [f"s{each}" for each in range(number + 1, count)]
        links = self.one(
            lambda: list(following),
            lambda: [{"step": name, **self.maybe(0.5, when=self.template("arc"))} for name in following],
            lambda: following[0] if following else [],
        )
        step = {
            "step": f"s{number}",
            **self.maybe(0.3, desc=self.rng.choice(TEXTS) or "d"),
            **self.maybe(0.3, when=self.template("server")),
            **self.maybe(0.4, result="answer"),
            **self.maybe(0.2, bind={"bound": self.template("server")}),
            **({"loop": self.shuffled(loop, "collection")} if looping else {}),
            "tool": self.tool(looping),
            **({"next": links} if following else {}),
        }
        return self.shuffled(step, "step")

    def tool(self, looping: bool) -> Data:
        row = ["{{ row }}"] if looping else []
        fields = {"url": self.rng.choice(["u", "{{ context.workload.label }}", *row])}
        task = self.one(
            lambda: {"kind": "http", "spec": {**fields, **self.maybe(0.3, timeout=5)}},
            lambda: {"kind": "http", **fields, "args": {"n": self.value("worker")}},
            lambda: {"kind": "noop", "args": {"n": self.value("worker")}},
            lambda: {
                "kind": "postgres",
                "auth": "pg",
                "command": "SELECT 1",
                **self.maybe(0.5, args={"n": self.template("worker")}),
            },
        )
        result = self.rng.choice(
            [None, None, "r", {"as": "picked", "pick": "{{ result.n }}"}, {"collect": {"into": "all", "mode": "list"}}]
        )
        task = {**task, **({"result": result} if result is not None else {})}
        return self.shuffled(task, "kind") if self.rng.random() < 0.8 else [self.shuffled(task, "kind")]


class Writer:
    """Writes data as YAML in random styles; `comments` are those that it wrote."""

    def __init__(self, rng: random.Random, *, anchors: bool = True) -> None:
        self.rng = rng
        self.comments: list[str] = []
        self.commented = rng.choice([0.0, 0.1, 0.4])
        self.flowing = rng.choice([0.0, 0.3, 0.7])
        self.wide = rng.choice([2, 2, 3, 4])
        self.indentless = rng.random() < 0.5
        self.anchors = anchors and rng.random() < 0.5
        self.defined: dict[str, str] = {}  # data -> anchor

    def comment(self) -> str:
        more = self.rng.choice(["", " a: b", " - x", " # y", " {", " it's"])
        text = f"#{self.rng.choice([' ', ''])}c{len(self.comments)}c{more}"
        self.comments.append(text)
        return text

    def some(self) -> bool:
        return self.rng.random() < self.commented

    def document(self, data: dict[str, Data]) -> str:
        lines = ["---"] if self.rng.random() < 0.1 else []
        lines += self.mapping(data, 0)
        if self.some():
            lines.append(self.comment())
        return "\n".join(lines) + self.rng.choice(["\n", "\n\n", ""])

    def above(self, column: int) -> list[str]:
        lines = [""] if self.rng.random() < self.commented / 3 else []
        while self.some():
            lines.append(" " * column + self.comment())
        return lines

    def end(self) -> str:
        return f"{self.rng.choice([' ', '   '])}{self.comment()}" if self.some() else ""

    def mapping(self, data: dict[str, Data], column: int) -> list[str]:
        lines: list[str] = []
        for key, value in self.merged(data).items():
            lines += self.above(column)
            lines += self.entry(" " * column + self.key(key) + ":", value, column, in_mapping=True)
        if self.some():
            lines.append(" " * column + self.comment())
        return lines

    def sequence(self, data: list[Data], column: int) -> list[str]:
        lines: list[str] = []
        for value in data:
            lines += self.above(column)
            lines += self.entry(" " * column + "-", value, column, in_mapping=False)
        return lines

    def key(self, key: str) -> str:
        if key == "<<":
            return key
        if key == "odd key" or not key.replace(".", "").replace("_", "").isalnum():
            return json.dumps(key)
        return self.rng.choice([key, key, key, key, f"'{key}'", f'"{key}"'])

    def merged(self, data: dict[str, Data]) -> dict[str, Data]:
        """A mapping with its last entries in a merge key."""
        names = list(data)
        if not self.anchors or len(names) < 3 or self.rng.random() > 0.15 or "<<" in data:
            return data
        kept = {name: data[name] for name in names[:2]}
        return {**kept, "<<": {name: data[name] for name in names[2:]}}

    def entry(self, lead: str, value: Data, column: int, *, in_mapping: bool) -> list[str]:
        alias = self.alias(value)
        if alias:
            return [f"{lead} {alias}{self.end()}"]
        anchor = self.anchor(value)
        if isinstance(value, dict | list) and value and self.rng.random() >= self.flowing:
            inner = column + self.wide
            if isinstance(value, list):
                inner = column + (0 if in_mapping and self.indentless else self.wide)
                lines = self.sequence(value, inner)
            else:
                lines = self.mapping(value, inner)
            if not in_mapping and not anchor and lines and not lines[0].lstrip().startswith("#") and lines[0].strip():
                return [lead + " " * (inner - column - 1) + lines[0][inner:], *lines[1:]]
            return [f"{lead}{anchor}{self.end()}", *lines]
        if isinstance(value, str) and "\n" in value and self.rng.random() < 0.8:
            header = "|" if value.endswith("\n") else "|-"
            pad = " " * (column + self.wide)
            return [
                f"{lead}{anchor} {header}{self.end()}",
                *(pad + line if line else "" for line in value.rstrip("\n").split("\n")),
            ]
        return [f"{lead}{anchor} {self.flow(value, column + 1)}{self.end()}"]

    def anchor(self, value: Data) -> str:
        if not self.anchors or not isinstance(value, dict | list) or not value or self.rng.random() > 0.3:
            return ""
        name = f"a{len(self.defined)}"
        self.defined[json.dumps(value)] = name
        return f" &{name}"

    def alias(self, value: Data) -> str:
        name = self.defined.get(json.dumps(value)) if isinstance(value, dict | list) else None
        return f"*{name}" if name else ""

    def flow(self, value: Data, column: int) -> str:
        if isinstance(value, dict | list):
            opening, closing = "{}" if isinstance(value, dict) else "[]"
            if not value:
                return opening + closing
            parts = []
            for each in value:
                if isinstance(value, dict):
                    parts.append(f"{self.key(each)}: {self.flow(value[each], column)}")
                else:
                    parts.append(self.flow(each, column))
            if self.rng.random() < self.commented:
                pad = "\n" + " " * (column + 1)
                ends = [f",{self.end()}" for _ in parts[:-1]] + [self.end()]
                return (
                    opening
                    + "".join(f"{pad}{part}{end}" for part, end in zip(parts, ends, strict=True))
                    + pad
                    + closing
                )
            space = self.rng.choice(["", " "])
            return f"{opening}{space}{', '.join(parts)}{space}{closing}"
        if isinstance(value, str):
            return self.text(value)
        return json.dumps(value)

    def text(self, value: str) -> str:
        plain = value.isidentifier() and value not in ("true", "false", "null", "on", "yes", "no", "off", "y", "n")
        if plain and self.rng.random() < 0.6:
            return value
        if "\n" not in value and "\t" not in value and self.rng.random() < 0.5:
            return "'" + value.replace("'", "''") + "'"
        return json.dumps(value, ensure_ascii=self.rng.random() < 0.3)


def random_playbook(seed: int) -> tuple[str, list[str]]:
    """The text of a playbook and its comments."""
    rng = random.Random(seed)
    data = rng.choice([V10, V10, Legacy])(rng).document()
    if rng.random() < 0.15:  # as programs write it
        width, unicode = rng.choice([40, 80, 1000]), rng.random() < 0.5
        return yaml.safe_dump(data, sort_keys=False, allow_unicode=unicode, width=width), []
    writer = Writer(rng)
    text = writer.document(data)
    return text, writer.comments
