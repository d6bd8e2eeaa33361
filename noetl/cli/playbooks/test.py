"""`noetl test`: playbooks with mocked or recorded tools, and what came of them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from noetl.cli.output.terminal import as_json, talk, terminal
from noetl.cli.target import store_option

if TYPE_CHECKING:
    from noetl.testing.playbook_tests.assertions import CaseResult
    from noetl.testing.playbook_tests.cases import Case

FAILED, USAGE, INVALID = 1, 2, 3


@click.command("test")
@click.argument("places", nargs=-1, metavar="[FILE|FOLDER]...")
@click.option("-k", "words", metavar="WORDS", help="Only tests whose name has this in it.")
@click.option("--record", metavar="ID", help="Write a test from an execution of this machine, on stdout; run nothing.")
@store_option
@as_json
@talk
def test(places: tuple[str, ...], words: str | None, record: str | None, store: str | None, as_json: bool) -> int:
    """Run playbook tests: NAME.test.yaml beside NAME.yaml.

    Without arguments, those of this folder and below. Tools that touch the world are mocked or recorded; exit code 0
    when every test passed, 1 when one did not, 3 when a playbook or a test file is invalid, 2 when there are no tests.
    """
    if record is not None:
        return asyncio.run(_record(record, store))
    from noetl.testing.playbook_tests.cases import BadTestFile, find, read

    verdicts: list[CaseResult] = []
    broken: list[str] = []
    for file in find(list(places)):
        try:
            tests, playbook = read(file)
        except BadTestFile as problem:
            broken.append(str(problem))
            terminal.error(str(problem))
            continue
        chosen = [case for case in tests.cases() if words is None or words.lower() in case.name.lower()]
        verdicts += asyncio.run(_run(str(file), playbook, chosen, quiet=as_json))
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
                for one in verdicts
            ]
        )
    if broken or any(one.invalid for one in verdicts):
        return INVALID
    if not verdicts:
        terminal.error("there are no tests: write NAME.test.yaml beside a playbook NAME.yaml")
        return USAGE
    failed = sum(not one.ok for one in verdicts)
    terminal.note(f"{len(verdicts) - failed} passed" + (f", {failed} failed" if failed else ""))
    return FAILED if failed else 0


async def _run(file: str, playbook: Path, cases: list[Case], *, quiet: bool) -> list[CaseResult]:
    from noetl.testing.playbook_tests.assertions import run_case

    verdicts = []
    for case in cases:
        verdict = await run_case(file, playbook, case)
        verdicts.append(verdict)
        if quiet:
            continue
        sign = "ok" if verdict.ok else "FAILED"
        terminal.data(f"{terminal.painted(sign, {'ok': 'good', 'FAILED': 'bad'}, 6)}  {file}: {verdict.name}")
        for problem in verdict.problems:
            for line in problem.splitlines():
                terminal.data(f"        {line}")
    return verdicts


async def _record(execution_id: str, store: str | None) -> int:
    from noetl.cli.backend.base import find_execution
    from noetl.cli.backend.local import LocalBackend
    from noetl.cli.local_engine import open_engine
    from noetl.testing.playbook_tests.recording import record

    async with open_engine(store, work=False) as engine:
        found = (await find_execution(LocalBackend(engine), execution_id)).execution_id
        terminal.data(await record(engine, found))
    return 0
