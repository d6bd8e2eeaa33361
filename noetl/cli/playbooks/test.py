"""`noetl test`: runs playbooks with mocked or recorded tools and checks their results."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from noetl.cli.output.terminal import json_options, terminal
from noetl.cli.target import store_option

if TYPE_CHECKING:
    from noetl.testing.playbook_tests.assertions import CaseResult
    from noetl.testing.playbook_tests.cases import Case

FAILED, USAGE, INVALID = 1, 2, 3


@click.command("test")
@click.argument("paths", nargs=-1, metavar="[FILE|FOLDER]...")
@click.option("-k", "pattern", metavar="TEXT", help="Only tests whose name contains this text.")
@click.option(
    "--record", metavar="ID", help="Print a test that is generated from an execution of this machine; run nothing."
)
@click.option("--junit", metavar="FILE", type=click.Path(path_type=Path), help="Write the results as JUnit XML.")
@click.option(
    "--annotations/--no-annotations",
    default=lambda: os.environ.get("GITHUB_ACTIONS") == "true",
    help="Print GitHub annotations; default: in a GitHub workflow.",
)
@store_option
@json_options
def test(
    paths: tuple[str, ...],
    pattern: str | None,
    record: str | None,
    junit: Path | None,
    annotations: bool,
    store: str | None,
    as_json: bool,
) -> int:
    """Run playbook tests: NAME.test.yaml beside NAME.yaml.

    Without arguments, all tests in this folder and below. Tools with external effects are mocked or recorded. Exit
    code 0 if every test passed, 1 if one failed, 3 if a playbook or a test file is invalid, 2 if there are no tests.
    """
    if record is not None:
        return asyncio.run(_record(record, store))
    from noetl.testing.playbook_tests.cases import BadTestFile, find, read

    results: list[CaseResult] = []
    broken: list[tuple[str, str]] = []
    for file in find(list(paths)):
        try:
            tests, playbook = read(file)
        except BadTestFile as problem:
            broken.append((str(file), str(problem)))
            terminal.error(str(problem))
            continue
        chosen = [case for case in tests.cases() if pattern is None or pattern.lower() in case.name.lower()]
        results += asyncio.run(_run(str(file), playbook, chosen, quiet=as_json))
    if junit is not None or annotations:
        from noetl.testing.playbook_tests import reports

        if junit is not None:
            reports.write_junit(junit, results, broken)
        for line in reports.github_annotations(results, broken) if annotations else ():
            terminal.note(line)
    if as_json:
        terminal.json(
            [
                {
                    "file": one.file,
                    "name": one.name,
                    "status": "passed" if one.ok else "failed",
                    "problems": list(one.problems),
                    "duration_ms": one.duration_ms,
                }
                for one in results
            ]
        )
    if broken or any(one.invalid for one in results):
        return INVALID
    if not results:
        terminal.error("there are no tests: write NAME.test.yaml beside a playbook NAME.yaml")
        return USAGE
    failed = sum(not one.ok for one in results)
    terminal.note(f"{len(results) - failed} passed" + (f", {failed} failed" if failed else ""))
    return FAILED if failed else 0


async def _run(file: str, playbook: Path, cases: list[Case], *, quiet: bool) -> list[CaseResult]:
    from noetl.testing.playbook_tests.assertions import run_case

    results = []
    for case in cases:
        result = await run_case(file, playbook, case)
        results.append(result)
        if quiet:
            continue
        label = "ok" if result.ok else "FAILED"
        terminal.data(f"{terminal.colored_cell(label, {'ok': 'green', 'FAILED': 'red'}, 6)}  {file}: {result.name}")
        for problem in result.problems:
            for line in problem.splitlines():
                terminal.data(f"        {line}")
    return results


async def _record(execution_id: str, store: str | None) -> int:
    from noetl.cli.backend.base import find_execution
    from noetl.cli.backend.local import LocalBackend
    from noetl.cli.local_engine import open_engine
    from noetl.testing.playbook_tests.recording import record

    async with open_engine(store, work=False) as engine:
        found = (await find_execution(LocalBackend(engine), execution_id)).execution_id
        terminal.data(await record(engine, found))
    return 0
