"""For every input the compiler returns diagnostics or a playbook and never raises."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import msgspec
import yaml
from dsl_kinds import SPECS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from noetl.core.language.compile import Compilation, compile_playbook, compile_steps
from noetl.core.language.diagnostics import FORMATS, render
from noetl.core.language.syntax.grammar import KEYCHAIN_KINDS, SHAPES
from noetl.core.model.playbook import Playbook

HERE = Path(__file__).parent
TEXTS = [path.read_text("utf-8") for path in sorted((HERE / "ok").glob("*.yaml"))]


MORE = int(os.environ.get("NOETL_EXAMPLES", "0"))


def examples(count: int) -> settings:
    """The same examples in every run of the suite; `NOETL_EXAMPLES=10000` asks for more, and for new ones."""
    return settings(
        max_examples=MORE or count,
        deadline=None,
        derandomize=not MORE,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    )


def examine(content: str | bytes, **options: bool) -> Compilation:
    """Compile, and hold what comes out to what it promises."""
    result = compile_playbook(content, file="random.yaml", specs=SPECS, **options)
    found = result.diagnostics
    assert (result.playbook is None) == any(one.severity == "error" for one in found)
    assert list(found) == sorted(found, key=lambda one: (one.line, one.column))
    assert all(one.line >= 1 and one.column >= 1 and one.end_line >= one.line for one in found)
    if result.playbook is not None:
        playbook = result.playbook
        assert msgspec.json.decode(msgspec.json.encode(playbook), type=Playbook) == playbook
        assert playbook.entry in playbook.steps_by_name
        for step in playbook.steps:
            labels = {task.name for task in step.tasks}
            assert len(labels) == len(step.tasks)
            jumps = {rule.then.to for task in step.tasks for rule in task.rules or () if rule.then.do == "jump"}
            assert jumps <= labels
            assert {arc.target for arc in step.router.arcs} <= set(playbook.steps_by_name)
    text = content if isinstance(content, str) else content.decode("utf-8", "replace")
    for format in FORMATS:
        assert isinstance(render(found, format, {"random.yaml": text}), str)
    return result


KEYS = sorted({key for shape in SHAPES.values() for key in shape.keys} | {"vars", "when", "expr", "eval", "<<", ""})
VALUES = [
    "{{ output.data.x }}", "{{ iter.item }}", "{{ ctx.a.b }}", "{{ keychain.k }}", "{{ x", "{% if %}", "{{ done('a') }}",
    "{{ outcome.result.data }}", "{{ args.x }}", "noop", "http", "python", "a", "b", "a-b", "9", "retry", "jump", "skip",
    "continue", "exclusive", "parallel", "noetl.io/v2", "Playbook", True, False, None, 0, -1, 3, 2.5, "", " ", "\n", "é",
    *KEYCHAIN_KINDS,
]  # fmt: skip
values = st.recursive(
    st.sampled_from(VALUES) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)
shaped = {
    name: st.dictionaries(st.sampled_from(sorted(shape.keys)), values, max_size=6) for name, shape in SHAPES.items()
}
tasks = st.lists(st.fixed_dictionaries({"kind": st.sampled_from(["noop", "http", "workbook"])}, optional={
    "name": st.sampled_from(["t", "u"]), "spec": shaped["task.spec"] | st.fixed_dictionaries({"policy": shaped["task.policy"] | st.fixed_dictionaries(
        {"rules": st.lists(shaped["task.rule"], max_size=3)})}), "set": values, "input": values, "url": values}) | shaped["choose"] | shaped["while"], max_size=3)  # fmt: skip
steps = st.lists(
    shaped["step"]
    | st.fixed_dictionaries(
        {"step": st.sampled_from(["a", "b", "c"])},
        optional={"tool": tasks, "next": shaped["next"] | st.fixed_dictionaries({"arcs": st.lists(shaped["arc"], max_size=2)}),
                  "loop": shaped["loop"], "spec": st.fixed_dictionaries({"policy": shaped["step.policy"]}), "input": values, "set": values},
    ),
    max_size=3,
)  # fmt: skip
documents = st.fixed_dictionaries(
    {"apiVersion": st.just("noetl.io/v2"), "kind": st.just("Playbook"), "metadata": st.just({"name": "r"}), "workflow": steps},
    optional={"keychain": st.lists(shaped["keychain"], max_size=2), "executor": shaped["executor"], "workload": values,
              "workbook": st.dictionaries(st.sampled_from(["x", "y"]), shaped["block"], max_size=2)},
)  # fmt: skip


@examples(60)
@given(documents, st.booleans())
def test_random_documents_of_known_keys_never_raise(document, strict):
    examine(yaml.safe_dump(document, sort_keys=False, allow_unicode=True), strict=strict)


@examples(80)
@given(values)
def test_random_data_never_raises_as_a_document_or_as_synthesized_steps(data):
    result = examine(yaml.safe_dump(data, allow_unicode=True))
    assert result.playbook is None
    playbook = compile_playbook(TEXTS[0], file="f", specs=SPECS).playbook
    assert playbook is not None
    made, found = compile_steps(data, playbook, SPECS)
    assert made == () or not any(one.severity == "error" for one in found)


@examples(150)
@given(st.binary(max_size=200) | st.text(max_size=200))
def test_random_bytes_and_text_never_raise(content):
    examine(content)


def mutated(text: str, rng: random.Random) -> str:
    """The text with one line changed in a way that people (and editors, and merges) change lines."""
    lines = text.split("\n")
    at = rng.randrange(len(lines))
    line = lines[at]
    match rng.randrange(9):
        case 0:
            del lines[at]
        case 1:
            lines.insert(at, line)
        case 2:
            lines[at] = " " * rng.randrange(8) + line.lstrip()
        case 3:
            lines[at] = line[: rng.randrange(len(line) + 1)]
        case 4:
            position = rng.randrange(len(line) + 1)
            lines[at] = line[:position] + rng.choice(":{}[]'\"|>&*#-%@!, \t") + line[position:]
        case 5:
            key, colon, _ = line.partition(":")
            lines[at] = f"{key}{colon} {rng.choice([str(value) for value in VALUES])}"
        case 6:
            other = rng.randrange(len(lines))
            lines[at], lines[other] = lines[other], line
        case 7:
            lines[at] = line.replace("{{", rng.choice(["{", "{%", "", "{{ ("]), 1)
        case _:
            words = [word for word in line.replace(":", " ").split() if word.isidentifier()]
            if words:
                lines[at] = line.replace(rng.choice(words), rng.choice(KEYS) or "x", 1)
    return "\n".join(lines)


@examples(100)
@given(st.sampled_from(TEXTS), st.integers(0, 2**32), st.integers(1, 3))
def test_any_mutation_of_a_valid_playbook_gives_diagnostics_or_a_model(text, seed, times):
    rng = random.Random(seed)
    for _ in range(times):
        text = mutated(text, rng)
    examine(text)


def written_at_random(rng: random.Random) -> str:
    """A small document of the language's own words, most of them where they belong."""

    def value(depth: int) -> object:
        draw = rng.random()
        if depth <= 0 or draw < 0.7:
            return rng.choice(VALUES)
        if draw < 0.85:
            return [value(depth - 1) for _ in range(rng.randrange(3))]
        return {rng.choice(KEYS): value(depth - 1) for _ in range(rng.randrange(3))}

    def shape(name: str, depth: int) -> dict[str, object]:
        made: dict[str, object] = {}
        for key, known in SHAPES[name].keys.items():
            if known.required or rng.random() < 0.35:
                made[key] = fitting(known.shape, known.type, known.choices, depth - 1)
        if rng.random() < 0.1:
            made[rng.choice(KEYS)] = value(1)
        return made

    def fitting(inner: str, type: str, choices: tuple[str, ...], depth: int) -> object:
        if rng.random() < 0.1 or depth <= 0:
            return value(1)
        if choices:
            return rng.choice(choices)
        if inner:
            return (
                [shape(inner, depth) for _ in range(rng.randrange(1, 3))] if type == "shapes" else shape(inner, depth)
            )
        if type == "list":
            return [shape(rng.choice(["task.rule", "admit.rule", "choose.branch"]), depth) for _ in range(2)]
        if type == "count":
            return rng.randrange(5)
        if type == "name":
            return rng.choice("abcd")
        if depth > 1 and rng.random() < 0.3:
            return [shape(rng.choice(["task", "task", "choose", "while", "until"]), depth - 1)]
        return value(1)

    document = shape("playbook", 7)
    document["workflow"] = [shape("step", 6) | {"step": name} for name in "abc"[: rng.randrange(1, 4)]]
    # YAML reads JSON, and JSON is written faster.
    return json.dumps(document)


def test_random_documents_never_raise():
    """About 1.5 ms of CPU each; `NOETL_EXAMPLES=10000` compiles more of them."""
    rng = random.Random(1)
    compiled = 0
    for number in range(MORE or 2_000):
        content = mutated(rng.choice(TEXTS), rng) if number % 20 == 0 else written_at_random(rng)
        result = compile_playbook(content, file="random.yaml", specs=SPECS, strict=number % 2 == 0)
        assert (result.playbook is None) == any(one.severity == "error" for one in result.diagnostics)
        compiled += result.playbook is not None
    assert compiled > 20, "too few of them are correct to say anything about lowering"


# --- playbooks that are whole: what is said about ways is said of them ----------------------------

GUARDS = [
    "ctx.a", "ctx.a is defined", "ctx.b | default(false)", "not ctx.b | default(0)", "workload.x > 1", "true", "false", "s1.x",
    "done('s0')", "ok('s0') and done('s1')", "all_done(['s0', 's1'])", "(done('s0') or done('s1')) and ctx.a | default(0) > 1",
]  # fmt: skip
ENDINGS = ["output.status == 'error'", "event.name == 'step.failed'", "event.name == 'loop.done'", "output.data.n > 3"]
INSIDE = [
    "ctx.a",
    "step.c",
    "step.c is defined",
    "output.status == 'error'",
    "output.data.n > 3",
    "true",
    "false",
    "s1.x",
]


class Whole:
    """A playbook of steps that lead anywhere, gates, pipelines that jump, constructs and blocks that call each other."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        count = self.rng.randrange(2, 7)
        steps = [self.step(number, count) for number in range(count)]
        book = {"b0": {"tool": self.tasks()}, "b1": {"tool": self.tasks(), "set": {"ctx.b": 1}}}
        head = {"apiVersion": "noetl.io/v2", "kind": "Playbook", "metadata": {"name": "w"}, "workload": {"x": 1}}
        self.text = json.dumps({**head, "workbook": book, "workflow": steps})

    def guard(self, among: list[str]) -> str:
        return f"{{{{ {self.rng.choice(among)} }}}}"

    def some(self, *targets: str) -> dict[str, str]:
        return {target: self.guard(INSIDE) for target in self.rng.sample(targets, self.rng.randrange(1, 3))}

    def maybe(self, likely: float, **entries: object) -> dict[str, object]:
        return entries if self.rng.random() < likely else {}

    def step(self, number: int, count: int) -> dict[str, object]:
        arcs = [
            {"step": f"s{self.rng.randrange(count)}", **self.maybe(0.6, when=self.guard(GUARDS + ENDINGS)),
             **self.maybe(0.3, set={"ctx.a": self.guard(["ctx.b", "output.data", "s1.x"])})}
            for _ in range(self.rng.randrange(1, 4))
        ]  # fmt: skip
        rules = [{"when": self.guard(GUARDS), "then": {"allow": self.rng.choice([True, True, False])}}]
        return {
            "step": f"s{number}", "tool": self.tasks(),
            **self.maybe(0.3, loop={"in": [1, 2], "iterator": "i", "spec": {"mode": self.rng.choice(["sequential", "parallel"])}}),
            **self.maybe(0.3, input={"v": self.guard(["ctx.a", "s1.x", "ctx.b | default(0)"])}),
            **self.maybe(0.4, set=self.some("ctx.a", "ctx.b", "step.c")),
            **self.maybe(0.3, spec={"policy": {"admit": {"rules": rules}}}),
            **self.maybe(0.8, next={"spec": {"mode": self.rng.choice(["exclusive", "inclusive"])}, "arcs": arcs}),
        }  # fmt: skip

    def tasks(self) -> list[object]:
        names = [f"t{number}" for number in range(self.rng.randrange(1, 4))]
        return [self.item(name, names) for name in names]

    def item(self, name: str, names: list[str]) -> dict[str, object]:
        draw = self.rng.random()
        if draw < 0.1:
            word = self.rng.choice(["while", "until"])
            return {"name": name, word: {"when": self.guard(INSIDE), "tool": [self.task(f"{name}_in", names)]}}
        if draw < 0.25:
            branches = [{"when": self.guard(INSIDE), "then": [self.task(f"{name}_{n}", names)]} for n in range(2)]
            return {
                "name": name,
                "choose": [*branches, *([{"else": {"then": [self.task(f"{name}_e", names)]}}] * (draw < 0.2))],
            }
        return self.task(name, names)

    def task(self, name: str, names: list[str]) -> dict[str, object]:
        rules = [self.rule(names) for _ in range(self.rng.randrange(1, 3))]
        if self.rng.random() < 0.7:
            rules.append({"else": {"then": self.rng.choice([{"do": "continue"}, {"do": "jump", "to": names[0]}])}})
        return {
            "name": name, **self.rng.choice([{"kind": "noop"}, {"kind": "http", "url": "u"}, {"kind": "workbook", "block": "b0"}]),
            **self.maybe(0.5, input={"v": self.guard(INSIDE)}),
            **self.maybe(0.4, set=self.some("ctx.a", "ctx.b", "step.c")),
            **self.maybe(0.5, spec={"policy": {"rules": rules}}),
        }  # fmt: skip

    def rule(self, names: list[str]) -> dict[str, object]:
        do = self.rng.choice(["continue", "retry", "jump", "break", "fail", "skip"])
        if do == "skip":
            return {"when": "{{ ctx.a }}", "then": {"do": do}}
        then = {"do": do, **({"to": self.rng.choice(names)} if do == "jump" else {})}
        return {"when": self.guard(INSIDE), "then": {**then, **self.maybe(0.4, set=self.some("ctx.a", "step.c"))}}


def test_whole_playbooks_are_checked_without_an_exception():
    reported: set[str] = set()
    compiled = 0
    for seed in range(200):
        result = compile_playbook(Whole(seed).text, file="whole.yaml", specs=SPECS)
        compiled += result.playbook is not None
        reported |= {one.code for one in result.diagnostics}
    assert compiled > 150, "too few of them are correct to say anything about their ways"
    assert reported >= {
        "unset-on-path",
        "endless-cycle",
        "closed-gate",
        "dead-arc",
        "not-run-yet",
        "parallel-ctx-write",
    }
