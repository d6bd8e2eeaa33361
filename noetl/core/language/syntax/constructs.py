"""`choose`, `while` and `until` compiled into tasks and jumps (001 section 14).

Each construct becomes `noop` tasks that only jump, around the author's own tasks:

    choose C:   C            first guard that holds -> its branch, none -> C__end
                branch 0 ... C__0_end -> C__end
                branch 1 ... C__1_end -> C__end
                C__end       the merge point
    while W:    W            guard holds -> continue, else -> W__end
                tasks ...    W__next -> W
                W__end
    until U:    U
                tasks ...    U__check: guard holds -> continue, else -> U

A branch ends with a jump to the merge point, so that it does not fall through into the next one. Names are derived from
the construct's name (or its position), so every compilation of a text yields the same names. A generated task is
transparent: it changes neither `output` nor `_prev`, and its path leads to the construct's line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from noetl.core.language.source.nodes import Node
from noetl.core.language.syntax.tree import BranchSyntax, ConstructSyntax, ItemSyntax, TaskSyntax
from noetl.core.model.playbook import Directive, Rule, Task

Lower = Callable[[TaskSyntax], Task]
Guard = Callable[[Node | None, str], Any]


def expand(items: list[ItemSyntax], lower: Lower, guard: Guard) -> tuple[Task, ...]:
    """The tasks of a pipeline, constructs compiled."""
    expander = _Expander(items, lower, guard)
    return tuple(expander.sequence(items))


class _Expander:
    def __init__(self, items: list[ItemSyntax], lower: Lower, guard: Guard) -> None:
        self.lower = lower
        self.guard = guard
        self.taken = set(_names_of(items))

    def sequence(self, items: list[ItemSyntax]) -> list[Task]:
        tasks: list[Task] = []
        for item in items:
            if isinstance(item, TaskSyntax):
                tasks += self.lower_all(item)
            elif item.keyword == "choose":
                tasks += self.choose(item)
            elif item.keyword == "while":
                tasks += self.while_(item)
            else:
                tasks += self.until(item)
        return tasks

    def lower_all(self, item: TaskSyntax) -> list[Task]:
        """A task between the tasks around it."""
        if not item.hooks:
            return [self.lower(item)]

        def around(word: str) -> list[Task]:
            return [replace(self.lower(each), hook=word, hook_of=item.name) for each in item.hooks.get(word, ())]

        return [*around("before"), self.lower(item), *around("after"), *around("finally")]

    def choose(self, item: ConstructSyntax) -> list[Task]:
        end = self.name(f"{item.name}__end")
        rules: list[Rule] = []
        bodies: list[list[Task]] = []
        for number, branch in enumerate(item.branches):
            body = self.sequence(branch.items)
            first = body[0].name if body else end
            rules.append(self.jump(item, first, branch))
            if body and number < len(item.branches) - 1:
                body.append(self.task(item, self.name(f"{item.name}__{number}_end"), self.jump(item, end)))
            bodies.append(body)
        if all(branch.when is not None for branch in item.branches):
            rules.append(self.jump(item, end))
        head = self.task(item, item.name, *rules)
        return [head, *(task for body in bodies for task in body), self.task(item, end)]

    def while_(self, item: ConstructSyntax) -> list[Task]:
        (branch,) = item.branches
        end = self.name(f"{item.name}__end")
        enter = Rule(when=self.when(branch), then=Directive(do="continue"), path=f"{branch.path}/when")
        head = self.task(item, item.name, enter, self.jump(item, end))
        body = self.sequence(branch.items)
        again = self.task(item, self.name(f"{item.name}__next"), self.jump(item, item.name))
        return [head, *body, again, self.task(item, end)]

    def until(self, item: ConstructSyntax) -> list[Task]:
        (branch,) = item.branches
        body = self.sequence(branch.items)
        leave = Rule(when=self.when(branch), then=Directive(do="continue"), path=f"{branch.path}/when")
        check = self.task(item, self.name(f"{item.name}__check"), leave, self.jump(item, item.name))
        return [self.task(item, item.name), *body, check]

    def when(self, branch: BranchSyntax) -> Any:
        return self.guard(branch.when, f"{branch.path}/when")

    def jump(self, item: ConstructSyntax, to: str, branch: BranchSyntax | None = None) -> Rule:
        """A rule that jumps: when the branch's guard holds, or else."""
        guarded = branch is not None and branch.when is not None
        path = f"{branch.path}/when" if guarded and branch is not None else item.path
        return Rule(when=self.when(branch) if guarded and branch else None, then=Directive(do="jump", to=to), path=path)

    def task(self, item: ConstructSyntax, name: str, *rules: Rule) -> Task:
        """A noop that belongs to a construct."""
        return Task(name=name, kind="noop", rules=rules or None, generated=item.keyword, path=item.path)

    def name(self, wanted: str) -> str:
        """A name that is not used yet."""
        while wanted in self.taken:
            wanted += "_"
        self.taken.add(wanted)
        return wanted


def _names_of(items: list[ItemSyntax]) -> list[str]:
    names = []
    for item in items:
        names += [each.name for each in item.with_hooks()] if isinstance(item, TaskSyntax) else [item.name]
        if isinstance(item, ConstructSyntax):
            for branch in item.branches:
                names += _names_of(branch.items)
    return names
