"""Types the commands of a page into one shell and compares what they print with what the page shows.

A fence with `title="NAME"` is written to that file. In a `console` fence, lines that begin with `$ ` are commands (a line that
ends in a backslash continues), the lines below are output:

* All of stdout is shown, and any lines of stderr; `...` alone on a line stands for any lines, a word that ends in `...` for any
  word. A command without shown output may print anything.
* A command exits with 0, unless an error is shown.
* Ids, durations, times, ports and digests differ from run to run and are compared as such. An id of the page stands for the id
  that the commands gave at this place, or for the newest execution.

Comments before a fence: `<!-- transcript: skip REASON -->` leaves it out, `background` starts its commands and goes on when they have
printed what is shown. Comments of their own: `do COMMAND` prepares what the page takes for granted, `run COMMAND` does so in the
background, `stop` ends what runs there. `$PRINTED` is the file with the output of the previous command.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

FENCE = re.compile(
    r"^<!-- transcript: (?P<order>(?:do|run|stop)\b.*?) ?-->$|"
    r"^(?:<!-- transcript: (?P<mark>.*?) -->\n)?(?P<indent> *)```(?P<language>\w*)(?P<words>[^\n]*)\n(?P<text>.*?)^(?P=indent)```",
    re.MULTILINE | re.DOTALL,
)
TITLE = re.compile(r'title="([^"]+)"')
ID = re.compile(r"\b(?:\d{18}|[0-9a-f]{18})\b")
VARYING = (
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?"), "TIME"),
    (re.compile(r"\b(\d{18}|[0-9a-f]{18})\b"), "ID"),
    (re.compile(r"\b\d+(\.\d+)? ?(ms|s|min|h)\b"), "DURATION"),
    (re.compile(r"(127\.0\.0\.1|localhost):\d+"), "ADDRESS"),
    (re.compile(r"\bpid \d+|\bprocess \d+"), "PID"),
    (re.compile(r"\buser-[0-9a-f]+\b"), "VERSION"),
    (re.compile(r"\b[0-9a-f]{12,64}\b"), "DIGEST"),
    (re.compile(r"━+"), "BAR"),
    (re.compile(r" {2,}"), "  "),
)
PATIENCE = 60.0


@dataclass
class Item:
    """A file or a command of a page."""

    line: int
    file: str = ""
    text: str = ""
    command: str = ""
    shown: list[str] = field(default_factory=list)
    background: bool = False
    stop: bool = False


def items(page: str) -> Iterator[Item]:
    """The files and commands of a page, in order."""
    for match in FENCE.finditer(page):
        if match["order"]:
            word, _, command = match["order"].partition(" ")
            yield Item(
                page[: match.start()].count("\n") + 1, command=command, stop=word == "stop", background=word == "run"
            )
            continue
        line = page[: match.start("text")].count("\n") + 1
        mark = (match["mark"] or "").split()
        indent = match["indent"]
        text = "".join(f"{each.removeprefix(indent)}\n" for each in match["text"].splitlines())
        if mark[:1] == ["skip"]:
            assert len(mark) > 1, f"line {line}: a skipped fence has a reason"
        elif match["language"] == "console":
            yield from commands(text, line, background=mark == ["background"])
        elif title := TITLE.search(match["words"]):
            yield Item(line, file=title[1], text=text)


def commands(text: str, first: int, *, background: bool) -> Iterator[Item]:
    """The commands of a fence with their output."""
    item = None
    continues = False
    for number, line in enumerate(text.splitlines()):
        if continues and item is not None:
            item.command += "\n" + line
        elif line.startswith("$ "):
            if item is not None:
                yield item
            item = Item(first + number, command=line[2:], background=background)
        elif item is not None:
            item.shown.append(line)
        continues = item is not None and not item.shown and item.command.endswith("\\")
    if item is not None:
        yield item


def normal(line: str) -> str:
    """A line without what differs from run to run."""
    for pattern, word in VARYING:
        line = pattern.sub(word, line)
    return line.rstrip()


def fits(shown: str, printed: str) -> bool:
    """Whether a printed line is the shown one."""
    if "..." not in shown:
        return normal(shown) == normal(printed)
    pattern = r"\S+".join(re.escape(part) for part in re.split(r"\S*\.\.\.", normal(shown)))
    return re.fullmatch(pattern, normal(printed)) is not None


def difference(shown: list[str], stdout: list[str], stderr: list[str]) -> str | None:
    """What is wrong: a shown line that was not printed, or a line of stdout that is not shown."""
    if not shown:
        return None
    out, err, any_lines = 0, 0, False
    for line in shown:
        if line.strip() == "...":
            any_lines = True
            continue
        place = next((i for i in range(out, len(stdout)) if fits(line, stdout[i])), None)
        if place is not None and (place == out or any_lines):
            out, any_lines = place + 1, False
            continue
        place = next((i for i in range(err, len(stderr)) if fits(line, stderr[i])), None)
        if place is None:
            return f"not printed: {line!r}"
        err = place + 1
    if out < len(stdout) and not any_lines:
        return f"not shown: {stdout[out]!r}"
    return None


class Shell:
    """One bash process that types the commands of a page."""

    def __init__(self, work: Path, environ: dict[str, str], replace: dict[str, str]) -> None:
        self.work, self.environ, self.replace = work, environ, replace
        self.ids: dict[str, str] = {}
        self.folder = work.parent / "typed"
        self.folder.mkdir(exist_ok=True)
        self.count = 0
        self.background: list[tuple[Item, int]] = []
        self.process = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            cwd=work,
            env=environ,
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def concrete(self, text: str) -> str:
        """The text of the page with the addresses and ids of this run."""
        for shown, real in self.replace.items():
            text = text.replace(shown, real)
        return ID.sub(lambda match: self.ids.get(match[0]) or self.newest() or match[0], text)

    def newest(self) -> str | None:
        """The id of the newest execution."""
        answer = subprocess.run(
            ["noetl", "executions", "--json", "--limit", "1"],
            cwd=self.work,
            env=self.environ,
            capture_output=True,
            text=True,
        )
        lines = answer.stdout.splitlines()
        found = json.loads(lines[0]) if answer.returncode == 0 and lines else None
        if isinstance(found, list):
            found = found[0] if found else None
        return found["execution_id"] if found else None

    def type(self, item: Item) -> str | None:
        """Type one command; returns what is wrong."""
        self.count += 1
        stem = self.folder / str(self.count)
        files = [stem.with_suffix(suffix) for suffix in (".out", ".err", ".code")]
        out, err, code = files
        if item.stop:
            self.stop_background()
            return None
        command = self.concrete(item.command)
        assert self.process.stdin is not None
        out.touch()
        err.touch()
        if item.background:
            script = stem.with_suffix(".sh")
            script.write_text(command)
            typed = f"setsid bash {script} >{out} 2>{err} </dev/null & echo $! >{code}\n"
        else:
            typed = f"{{ {command}\n}} >{out} 2>{err} </dev/null; echo $? >{code}; PRINTED={out}\n"
        self.process.stdin.write(typed)
        self.process.stdin.flush()
        deadline = time.monotonic() + PATIENCE
        while not (code.exists() and code.read_text().strip()):
            if time.monotonic() > deadline or self.process.poll() is not None:
                return f"did not end within {PATIENCE} s\n{self.printed(out, err)}"
            time.sleep(0.01)
        shown = [self.translate(line) for line in item.shown]
        number = int(code.read_text())
        if item.background:
            self.background.append((item, number))
            return self.follow(item, shown, out, err, deadline)
        self.learn(item.shown, out, err)
        shown = [self.translate(line) for line in item.shown]
        failed = any(re.search(r"(^|: )error: ", line) for line in shown)
        wrong = difference(shown, out.read_text().splitlines(), err.read_text().splitlines())
        if wrong is None and (number != 0) != failed:
            wrong = f"exit code {number}"
        return None if wrong is None else f"{wrong}\n{self.printed(out, err)}"

    def follow(self, item: Item, shown: list[str], out: Path, err: Path, deadline: float) -> str | None:
        """Wait until a command in the background has printed what is shown; noetl prints something when it is ready."""
        while True:
            printed = (out.read_text().splitlines(), err.read_text().splitlines())
            self.learn(shown, out, err)
            if (any(printed) or not item.command.startswith("noetl ")) and difference(
                [self.translate(line) for line in shown], *printed
            ) is None:
                return None
            if time.monotonic() > deadline:
                return f"{difference(shown, *printed)}\n{self.printed(out, err)}"
            time.sleep(0.05)

    def learn(self, shown: list[str], out: Path, err: Path) -> None:
        """Ids of the page stand for those that were printed at their place."""
        printed = out.read_text().splitlines() + err.read_text().splitlines()
        for line in shown:
            for one in printed:
                if ID.search(line) and normal(line) == normal(one):
                    self.ids |= dict(zip(ID.findall(line), ID.findall(one), strict=True))
                    break

    def translate(self, line: str) -> str:
        for shown, real in self.replace.items():
            line = line.replace(shown, real)
        return line

    def printed(self, out: Path, err: Path) -> str:
        return f"--- stdout\n{out.read_text()}--- stderr\n{err.read_text()}"

    def stop_background(self) -> None:
        """End the commands in the background."""
        for _item, group in reversed(self.background):
            for number, wait in ((signal.SIGTERM, 20.0), (signal.SIGKILL, 5.0)):
                try:
                    os.killpg(group, number)
                except ProcessLookupError:
                    break
                deadline = time.monotonic() + wait
                while time.monotonic() < deadline and Path(f"/proc/{group}").exists():
                    time.sleep(0.05)
        self.background = []

    def close(self) -> None:
        """End the shell and what it has started."""
        self.stop_background()
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=30)
