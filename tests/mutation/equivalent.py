"""Mutants that change nothing a test may assert, each with the reason; the runner leaves them out.

A mutant is named by its file, the text of its line and its change, so that a moved line is found again. A test checks
that every entry names a mutant that exists. Whole kinds of such mutants (annotations, texts of messages, `strict` of
`zip`, sizes) are left out by `tests.mutation.mutants`.
"""

from __future__ import annotations

from pathlib import Path

from tests.mutation.mutants import Mutant

PERFORMANCE = "only skips work whose result is not read"
NOTHING_WRITTEN = "an empty patch changes nothing"
CHECKED = "the compiler has checked it before"

EQUIVALENT: dict[tuple[str, str, str], str] = {
    ("noetl/core/pipeline/scopes.py", 'if "steps" in program.bare:', "the condition is always true"): PERFORMANCE,
    (
        "noetl/core/pipeline/advance.py",
        'if "_prev" in level.program.bare:',
        "the condition is always true",
    ): PERFORMANCE,
    ("noetl/core/pipeline/scopes.py", 'if "output" in program.bare:', "the condition is always true"): PERFORMANCE,
    ("noetl/core/pipeline/scopes.py", 'if "outcome" in program.bare:', "the condition is always true"): PERFORMANCE,
    (
        "noetl/core/engine/evaluation/compiled_net.py",
        "return self.when is None and not self.assignments and not self.has_keys",
        "returns None",
    ): PERFORMANCE,
    ("noetl/core/pipeline/advance.py", "if not level.prepared:", "the condition is always true"): PERFORMANCE,
    ("noetl/core/pipeline/advance.py", "if compiled.policy_reads_input:", "the condition is always true"): PERFORMANCE,
    (
        "noetl/core/pipeline/run_completion.py",
        "stop = False",
        "False becomes True",
    ): "only the event of a successful iteration has it, and every iteration sets it",
    ("noetl/core/engine/accept.py", "if run.latest or run.seen:", "the condition is always true"): PERFORMANCE,
    (
        "noetl/core/engine/advance.py",
        "if each.child is not None:",
        "the condition is always true",
    ): "no wait and no child has the key None",
    (
        "noetl/server/orchestrator/execution_actor.py",
        "self.waited = False  # whether it only waited before the latest append",
        "False becomes True",
    ): "every decision sets it before it is read",
    (
        "noetl/server/orchestrator/catalog.py",
        "if len(source.text) <= MAX_INLINE_CHARACTERS:",
        "the condition is always false",
    ): "a thread compiles what this thread would compile",
    (
        "noetl/core/engine/state.py",
        "reported: int = 0  # seq of its log at the latest report of that",
        "0 becomes 1",
    ): "a child that waits has more than one event in its log, so its first report is newer than both",
    (
        "noetl/core/engine/attempt_ledger.py",
        "run.ended[key] = max(event.attempt, run.ended.get(key, 0))",
        "0 becomes 1",
    ): "the numbers of attempts begin with 1, so the maximum is the same",
    (
        "noetl/core/engine/handlers/reduce.py",
        'if reducer == "any":',
        "the condition is always false",
    ): "of two truth values the larger one, which the last line returns, is their disjunction",
    (
        "noetl/core/pipeline/task_assignments.py",
        'elif assignment.scope == "iter":',
        "the condition is always true",
    ): CHECKED,
    (
        "noetl/server/orchestrator/catalog.py",
        "close = get_close_matches(path, paths, n=1)",
        "1 becomes 2",
    ): "only the first one is shown, and it is the closest in both cases",
    ("noetl/core/engine/evolve/loops.py", "if each.step_patch:", "the condition is always true"): NOTHING_WRITTEN,
    ("noetl/core/engine/evolve/loops.py", "if event.step_patch:", "the condition is always true"): NOTHING_WRITTEN,
    (
        "noetl/core/engine/views/open_waits.py",
        "if not state.waits and not state.waiting_children:",
        "the condition is always false",
    ): PERFORMANCE,
    (
        "noetl/core/engine/decide.py",
        "if step_run.step.synthesize is not None:",
        "the condition is always true",
    ): "`synthesize` returns nothing for a step that does not synthesize",
    (
        "noetl/core/engine/handlers/start.py",
        "if not compiled.static:",
        "the condition is always true",
    ): "a value without a template is evaluated to itself",
    (
        "noetl/server/orchestrator/catalog.py",
        "StoredPlaybook(playbook.path, 0, playbook.digest, source.text, at, source.file, origin or Origin())",
        "0 becomes 1",
    ): "the store assigns the version",
    (
        "noetl/server/orchestrator/service.py",
        "if not found:",
        "the condition is always true",
    ): "only reads a summary that is not used",
    (
        "noetl/server/dispatch/dispatcher.py",
        "seen: int = -1  # the version of the queue in which the worker has found nothing",
        "1 becomes 2",
    ): "the versions of the queue begin with 0",
}


def is_equivalent(mutant: Mutant, root: Path) -> bool:
    """Whether the list has this mutant."""
    line = (root / mutant.file).read_text().splitlines()[mutant.line - 1].strip()
    return (mutant.file, line, mutant.change) in EQUIVALENT
