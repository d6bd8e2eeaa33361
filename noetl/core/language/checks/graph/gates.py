"""Admission gates that can never open: tokens wait until the execution ends, and the step never runs.

The check computes what can happen as a fixed point. It starts at the entry step. A step can run when a step that can
run leads to it and its gate can open with the facts found so far: the steps that can run, and the keys that they set.
A gate that is still closed at the fixed point waits for its own step, for something that happens only after it, for a
gate that waits for this one, or for branches of which only one is taken. A gate that waits for a value of `ctx` that no
step sets is reported too: only a signal could open it, and a parked token does not keep the execution alive.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from noetl.core.language.checks.analysis import AnalysisContext
from noetl.core.language.flow.guard_conditions import alternatives, always_false, always_true, conjuncts, expression
from noetl.core.language.flow.reachability import Reachability
from noetl.core.language.source.nodes import Node, Scalar
from noetl.core.language.syntax.tree import AdmitRuleSyntax, StepSyntax

Fact = tuple[str, str]  # ("ran", step), ("set", key of ctx), ("ctx", key of ctx that is set to something true)

_ONE = re.compile(r"""(?:done|ok|fail|running|loop_done)\(\s*(['"])([^'"]+)\1\s*\)""")
_ALL = re.compile(r"""all_done\(\s*[\[(]([^\])]*)[\])]\s*\)""")
_ANY = re.compile(r"""any_done\(\s*[\[(]([^\])]*)[\])]\s*\)""")
_NAMES = re.compile(r"""'([^']+)'|"([^"]+)\"""")
_NOTHING = r"""(?:\(\s*(?:false|False|none|None|''|""|0)?\s*\))?"""
_MORE = r"""(?:\s*==\s*(?:'[^']+'|"[^"]+"|[1-9]\d*|true|True)|\s*>\s*\d+|\s*>=\s*[1-9]\d*)?"""
_TRUE = re.compile(rf"ctx\.(\w+)(?:\.\w+)*\s*\|\s*(?:default|d){_NOTHING}{_MORE}")
_DEFINED = re.compile(r"ctx\.(\w+)(?:\.\w+)*\s+is\s+defined")
_READ = re.compile(rf"ctx\.(\w+)(?:\.\w+)*{_MORE}")


def check(context: AnalysisContext) -> None:
    """Compute what can happen, and report the gates that stay closed."""
    gated = [step for step in context.document.steps if step.admit_rules]
    if not gated or context.has_dynamic_steps:
        return
    proof = GateProof(context)
    for step in gated:
        if step.name in proof.arrived and step.name not in proof.ran:
            _report(context, step, proof)
        elif step.name in proof.arrived:
            _check_signals(context, step, proof)


class GateProof:
    """The facts that can become true, computed as a fixed point."""

    def __init__(self, context: AnalysisContext) -> None:
        self.steps = {step.name: step for step in context.document.steps}
        self.sets = {name: _facts(context, step) for name, step in self.steps.items()}
        self.settable = {fact for facts in self.sets.values() for fact in facts}
        self.reachability = Reachability(context.document.steps)
        self.facts: set[Fact] = set()
        self.ran: set[str] = set()
        self.arrived: set[str] = set()
        self._waiting: dict[Fact, list[str]] = {}  # a fact -> the gates that wait for it
        self._propagate(context.entry)

    def _propagate(self, entry: str) -> None:
        work = [entry]
        while work:
            name = work.pop()
            if name in self.ran or name not in self.steps:
                continue
            if name not in self.arrived:
                self.arrived.add(name)
                for fact in {fact for required in self.requirements(self.steps[name]) for fact in required}:
                    self._waiting.setdefault(fact, []).append(name)
            if not self._can_open(self.steps[name]):
                continue
            self.ran.add(name)
            work += [arc.target for arc in self.steps[name].arcs if arc.target and not always_false(arc.when)]
            for fact in (("ran", name), *self.sets[name]):
                if fact not in self.facts:
                    self.facts.add(fact)
                    work += self._waiting.pop(fact, ())

    def requirements(self, step: StepSyntax) -> Iterator[set[Fact]]:
        """For each rule that can open the gate, the facts that it requires; an empty set if they are unknown."""
        for rule in step.admit_rules:
            if not _denies(rule):
                yield from self._alternatives(rule)

    def _alternatives(self, rule: AdmitRuleSyntax) -> Iterator[set[Fact]]:
        texts = [expression(node) for node in (rule.when, rule.allow) if isinstance(node, Scalar)]
        parts = [part for text in texts if text for part in conjuncts(text)]
        found: set[Fact] = set()
        choice: list[Fact] = []
        for part in parts:
            one, every, some = _ONE.fullmatch(part), _ALL.fullmatch(part), _ANY.fullmatch(part)
            true_value, defined = _TRUE.fullmatch(part) or _READ.fullmatch(part), _DEFINED.fullmatch(part)
            if one is not None:
                found.add(("ran", one.group(2)))
            elif every is not None:
                found |= {("ran", name) for name in _quoted_names(every.group(1))}
            elif some is not None and not choice:
                choice = [("ran", name) for name in _quoted_names(some.group(1))]
            elif true_value is not None or defined is not None:
                fact = (
                    ("ctx", true_value.group(1))
                    if true_value is not None
                    else ("set", defined.group(1) if defined else "")
                )
                found.add(fact)
            elif not choice and len(several := alternatives(part)) > 1:
                matches = [_ONE.fullmatch(each) for each in several]
                choice = [("ran", each.group(2)) for each in matches if each is not None] if all(matches) else []
        yield from ([{*found, fact} for fact in choice] or [found])

    def _can_open(self, step: StepSyntax) -> bool:
        if not step.admit_rules:
            return True
        return any(
            required - self.only_by_signal(required) <= self.facts and self._can_all_run(required)
            for required in self.requirements(step)
        )

    def only_by_signal(self, required: set[Fact]) -> set[Fact]:
        """The values that no step sets: a signal may set them."""
        return {fact for fact in required if fact[0] != "ran" and fact not in self.settable}

    def _can_all_run(self, required: set[Fact]) -> bool:
        """Whether all the steps that must have run can run in one execution."""
        names = sorted(name for what, name in required if what == "ran" and name in self.steps)
        return all(
            self.reachability.both_can_run(one, other) for i, one in enumerate(names) for other in names[i + 1 :]
        )

    def explain(self, step: StepSyntax) -> str:
        """Why a closed gate cannot open."""
        missing = sorted({fact for required in self.requirements(step) for fact in required - self.facts})
        if not missing:
            return "the steps it waits for are on mutually exclusive branches"
        what, name = missing[0]
        if what != "ran":
            owners = [each for each, facts in self.sets.items() if (what, name) in facts]
            return f'it waits for `ctx.{name}`, which is set only after it (by "{owners[0]}")'
        if name == step.name:
            return "it waits for its own step"
        if name not in self.arrived:
            return f'it waits for "{name}", which runs only after it'
        return f'it waits for "{name}", which waits for this step'


def _report(context: AnalysisContext, step: StepSyntax, proof: GateProof) -> None:
    allowing = [rule for rule in step.admit_rules if not _denies(rule)]
    rule = (allowing or step.admit_rules)[0]
    where: Node = rule.when if rule.when is not None else rule.node
    if not allowing:
        message = f'the gate of "{step.name}" never opens: none of its rules allows the token'
        context.reader.add("closed-gate", where, message, "write a rule with `then: {allow: true}`")
        return
    message = f'the gate of "{step.name}" never opens: {proof.explain(step)}'
    context.reader.add(
        "closed-gate", where, message, "require only what can happen before the token arrives at the gate"
    )


def _check_signals(context: AnalysisContext, step: StepSyntax, proof: GateProof) -> None:
    """Report a gate that only a signal could open."""
    rules = [rule for rule in step.admit_rules if not _denies(rule)]
    waits = [proof.only_by_signal(required) for required in proof.requirements(step)]
    if not waits or not all(waits) or any(rule.when is None and always_true(rule.allow) for rule in rules):
        return
    name = min(fact[1] for fact in waits[0])
    never = "no step sets to a value that opens it" if ("set", name) in proof.settable else "no step sets"
    message = f'the gate of "{step.name}" waits for `ctx.{name}`, which {never}: only a signal could open it'
    discards = step.admit is not None and step.admit.on_deny == "discard"
    if discards:
        hint = "a denied token is dropped at once (`on_deny: discard`)"
    else:
        hint = "a gate does not wait: parked tokens do not keep an execution alive"
    instead = "use a task of `kind: wait`" if "wait" in context.reader.specs else "set it in a step that runs before"
    where: Node = rules[0].when if rules[0].when is not None else rules[0].node
    context.reader.add("closed-gate", where, message, f"{hint}; {instead}")


def _denies(rule: AdmitRuleSyntax) -> bool:
    return always_false(rule.when) or always_false(rule.allow) or rule.allow is None


def _facts(context: AnalysisContext, step: StepSyntax) -> set[Fact]:
    """The facts about `ctx` after a step has run; an empty value opens no gate that requires the value to be true."""
    found: set[Fact] = set()
    for each in context.sets_of(step):
        if each.scope == "ctx":
            found.add(("set", each.keys[0]))
            if not isinstance(each.value, Scalar) or each.value.value:
                found.add(("ctx", each.keys[0]))
    for key in context.called_keys(step):
        found |= {("set", key), ("ctx", key)}
    return found


def _quoted_names(text: str) -> list[str]:
    return [one or other for one, other in _NAMES.findall(text)]
