"""Finds the places of a shell command at which a value would be evaluated as code.

A bound value is a reference to a variable (`value_binding`), which the shell expands without evaluating it. At some
places an expanded value is evaluated all the same:

    arithmetic     (( x )), $(( x )), let, [[ x -eq 1 ]], a[x]=1, ${a[x]}, ${a:x}, declare -i, for (( ... ))
    names          declare x, read x, unset x, printf -v x, [[ -v x ]]: a subscript in the name is evaluated
    nested code    sh -c, eval, trap, source, ssh, a pipe or a here-document into a shell, python -c

At these places only values are accepted that cannot be code: numbers, identifiers, or text without metacharacters. The
same applies to a value that is stored in a variable which such a place reads. The search is by patterns and refuses in
doubt: a refused value can always be passed in `env:` or in a list of arguments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

MARK = "\x01"  # stands for a value in the text of a command
_SHELLS = r"(?:[\w./-]*/)?(?:ba|da|z|k|mk|a|fi|c|tc|rba)?sh(?![\w.-])|(?:[\w./-]*/)?busybox(?![\w.-])"
_SHELL = re.compile(rf"(?<![\w./$-])(?:{_SHELLS})")
_CODE_OPTION = re.compile(r"(?:^|\s)(?:-[A-Za-z]*c|--command)(?=[\s'\"=]|$)")
_LANGUAGES = re.compile(
    r"(?<![\w./-])(?:[\w./-]*/)?(?:python[\d.]*|perl|ruby|node|php|lua|tclsh|Rscript|osascript)(?![\w.-])"
)
_LANGUAGE_OPTION = re.compile(r"(?:^|\s)-[A-Za-z]*[cerE](?=[\s'\"=])")
_EVALUATORS = re.compile(
    r"(?<![\w./$-])(?:eval|trap|alias|source|ssh|su|runuser|watch|parallel|at|batch|crontab|script|expect|nsenter|chroot|"
    r"complete|bind|enable|fc|coproc|xargs)(?=[\s'\"]|$)|(?:^|[\s;&|({`])\.\s"
)
_CODE_VARIABLES = re.compile(
    r"(?<![\w$])(?:PROMPT_COMMAND|BASH_ENV|ENV|PS0|PS1|PS2|PS4|LD_PRELOAD|LD_LIBRARY_PATH|PATH|SHELL|EDITOR|VISUAL|PAGER|"
    r"GIT_SSH_COMMAND|PERL5OPT|PYTHONSTARTUP|IFS|BASH_FUNC_\w+%%)\+?=\S*$"
)
_DECLARING = (
    r"(?:declare|typeset|local|readonly|export|integer|unset|read|mapfile|readarray|getopts|printf\s+-v|wait\s+-p)"
)
_NAMING = re.compile(rf"(?<![\w./$-]){_DECLARING}(?:\s+-[A-Za-z]*)*(?:\s+[^\s;|&]+)*\s+[\"']?$")
_IS_SET = re.compile(r"(?:\[\[?|test)\s.*-[vR]\s+[\"']?$", re.DOTALL)
_INTEGER = re.compile(r"(?<![\w./$-])(?:declare|typeset|local|readonly|export)\s+(?:-\w+\s+)*-[A-Za-z]*i[A-Za-z]*\s")
_COMPARISON = re.compile(r"\s-(?:eq|ne|lt|le|gt|ge)\s")
_SUBSCRIPT = re.compile(r"[A-Za-z_]\w*\[[^\]\s]*$")
_SUBSTRING = re.compile(r"\$\{[A-Za-z_@*]\w*(?:\[[^\]]*\])?:[^-=?+}][^}]*$|\$\{[A-Za-z_@*]\w*(?:\[[^\]]*\])?:$")
_SEPARATOR = re.compile(r"\n|;|&&|\|\||(?<!>)&(?!>)|\bthen\b|\bdo\b|\belse\b")
_NUMBER = re.compile(r"[+-]?\d{1,18}")
_NAME = re.compile(r"[A-Za-z_]\w*")
_PLAIN = re.compile(r"[\w@%+=:,./ -]*")
_ARITHMETIC = re.compile(
    r"\$?\(\((?P<a>.*?)\)\)|\$\[(?P<b>[^\]]*)\]|(?<![\w./$-])let\s(?P<c>[^\n;]*)|"
    r"\[\[(?P<d>[^\n]*?-(?:eq|ne|lt|le|gt|ge)\s[^\n]*?)\]\]|[A-Za-z_]\w*\[(?P<e>[^\]\n]*)\]|"
    r"\$\{\w+:(?P<f>[^}=?+-][^}]*)\}|(?:declare|typeset|local)\s+-\w*i\w*\s(?P<g>[^\n;]*)",
    re.DOTALL,
)
_ASSIGNED = re.compile(r"(?<![\w$])([A-Za-z_]\w*)(?:\[[^\]]*\])?\+?=(\S*)")
_ITERATED = re.compile(r"(?<!\w)(?:for|select)\s+([A-Za-z_]\w*)\s+in\s([^\n;]*)")
_READ = re.compile(r"(?<!\w)(?:read|mapfile|readarray)\s+((?:-\w+\s+\S*\s*)*)((?:[A-Za-z_]\w*\s*)+)([^\n;]*)")


class Place(NamedTuple):
    """What a value at a place of a command must look like, and what the place is."""

    pattern: re.Pattern[str]
    what: str

    @property
    def is_number(self) -> bool:
        """Whether only numbers are accepted."""
        return self.pattern is _NUMBER

    def refuses(self, value: str) -> bool:
        """Whether a value could be evaluated as code there."""
        return self.pattern.fullmatch(value) is None


def place_of(command: str, at: int) -> Place | None:
    """The place at an index of a command, where `MARK` stands for a value; None where every value is only data."""
    return _arithmetic(command, at) or _name(command, at) or _code(command, at) or _through_variables(command, at)


def _statement(command: str, at: int) -> tuple[int, int]:
    """Where the statement around an index begins and ends; quotes are not read, so it may be longer or shorter."""
    start = max(
        (found.end() for found in _SEPARATOR.finditer(command, 0, at) if not _quoted(command, found.start())), default=0
    )
    ends = (found.start() for found in _SEPARATOR.finditer(command, at) if not _quoted(command, found.start()))
    return start, next(ends, len(command))


def _quoted(command: str, at: int) -> bool:
    """Whether an index is inside quotes."""
    quote = ""
    position = 0
    while position < at:
        character = command[position]
        if character == "\\" and quote != "'":
            position += 1
        elif quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        position += 1
    return bool(quote)


def _arithmetic(command: str, at: int) -> Place | None:
    place = Place(_NUMBER, "an arithmetic expression")
    before = command[:at]
    for opening, closing in (("((", "))"), ("$[", "]")):
        if before.rfind(opening) > before.rfind(closing):
            return place
    start, end = _statement(command, at)
    statement, before = command[start:end], command[start:at]
    if re.search(r"(?<![\w./$-])let\s", before) or _INTEGER.search(before):
        return place
    bracket = max(before.rfind("[[ "), before.rfind("[ "), before.rfind("test "))
    if bracket >= 0 and _COMPARISON.search(statement[bracket:].replace(MARK, " ")):
        return place
    if _SUBSCRIPT.search(before) or _SUBSTRING.search(before):
        return Place(_NUMBER, "a subscript or an offset")
    return None


def _name(command: str, at: int) -> Place | None:
    start, _ = _statement(command, at)
    before = command[start:at]
    if _NAMING.search(before) or _IS_SET.search(before):
        return Place(_NAME, "the name of a variable")
    return None


def _code(command: str, at: int) -> Place | None:
    start, end = _statement(command, at)
    statement, before = command[start:end], command[start:at]
    nested = Place(_PLAIN, "code of a nested shell")
    if _EVALUATORS.search(before) or _CODE_VARIABLES.search(before):
        return nested
    for language in _LANGUAGES.finditer(before):
        option = _LANGUAGE_OPTION.search(before, language.end())
        if option and _same_word(before[option.end() :]):
            return Place(_PLAIN, "code of a nested interpreter")
    for shell in _SHELL.finditer(statement):
        if _is_evaluated_by(statement, shell.end(), at - start, shell.start()):
            return nested
    return _code_by_heredoc(command, at)


def _is_evaluated_by(statement: str, shell: int, at: int, begins: int) -> bool:
    """Whether a shell that is named in a statement evaluates the value at `at`."""
    after = re.split(r"(?<!\|)\|(?!\|)", statement[shell:], maxsplit=1)[0]
    option = _CODE_OPTION.search(after)
    if option:
        return at >= shell + option.end() and _same_word(statement[shell + option.end() : at])
    words = [
        word
        for word in re.sub(r"<<<?.*|[<>]\s*\S+", "", after, flags=re.DOTALL).split()
        if not word.startswith(("-", "+"))
    ]
    words = [word for word in words if word not in ("pipefail", "errexit", "nounset", "posix", ")", "}")]
    reads_input = not words or re.search(r"(?:^|\s)-[a-z]*s(?:\s|$)", after) is not None
    if not reads_input:
        return False  # `bash script.sh {{ x }}`
    return at < begins or at >= shell  # piped into it, or in a here-string


def _same_word(text: str) -> bool:
    """Whether the end of a text belongs to its first word."""
    quote = ""
    text = text.lstrip(" \t=")
    position = 0
    while position < len(text):
        character = text[position]
        if character == "\\" and quote != "'":
            position += 2
            continue
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in " \t\n;&|":
            return False
        position += 1
    return True


_HEREDOC = re.compile(r"<<-?[ \t]*\\?(['\"]?)([A-Za-z0-9_.+-]+)\1")


def _code_by_heredoc(command: str, at: int) -> Place | None:
    """A here-document of a command that evaluates its input."""
    for found in _HEREDOC.finditer(command, 0, at):
        line_end = command.find("\n", found.end())
        if line_end < 0 or line_end >= at:
            continue
        body_end = re.compile(rf"^\t*{re.escape(found[2])}$", re.MULTILINE).search(command, line_end)
        if body_end and body_end.start() < at:
            continue
        line = command[command.rfind("\n", 0, found.start()) + 1 : line_end]
        if _SHELL.search(line) or _EVALUATORS.search(line) or _LANGUAGES.search(line):
            return Place(_PLAIN, "a here-document that a nested shell evaluates")
    return None


def _without_literal_documents(command: str) -> str:
    """A command without the here-documents that no shell expands or evaluates: quoted ones of other programs."""
    for found in _HEREDOC.finditer(command):
        line_end = command.find("\n", found.end())
        body_end = re.compile(rf"^\t*{re.escape(found[2])}$", re.MULTILINE).search(command, max(line_end, 0))
        line = command[command.rfind("\n", 0, found.start()) + 1 : line_end]
        is_quoted = found[1] or "\\" in found[0]
        if body_end and line_end >= 0 and is_quoted and not (_SHELL.search(line) or _EVALUATORS.search(line)):
            command = command[:line_end] + " " * (body_end.start() - line_end) + command[body_end.start() :]
    return command


def _through_variables(command: str, at: int) -> Place | None:
    """A place that reads a variable in which the value is stored."""
    stored = set(_stored(command, at))
    if not stored:
        return None
    while True:
        more = {name for name, value in _ASSIGNED.findall(command) if _mentions(value, stored)} - stored
        more |= {name for name, value in _ITERATED.findall(command) if _mentions(value, stored)} - stored
        if not more:
            break
        stored |= more
    bare = re.compile(rf"(?<![\w])(?:{'|'.join(sorted(stored))})(?!\w)")
    for found in _ARITHMETIC.finditer(_without_literal_documents(command)):
        text = next((group for group in found.groups() if group is not None), "")
        if bare.search(text) or ("@" in stored and re.search(r"\$(?:\{)?[\d@*]", text)):
            return Place(_NUMBER, "an arithmetic expression, through a variable")
    for found in (*_EVALUATORS.finditer(command), *_SHELL.finditer(command)):
        start, end = _statement(command, found.start())
        rest = command[start:end]
        if _mentions(rest, stored):
            if (
                _SHELL.fullmatch(found.group())
                and not _CODE_OPTION.search(rest)
                and "|" not in rest
                and "<<" not in rest
            ):
                continue
            return Place(_PLAIN, "code of a nested shell, through a variable")
    return None


def _stored(command: str, at: int) -> Iterator[str]:
    """The variables in which the value at an index is stored."""
    for found in _ASSIGNED.finditer(command):
        if found.start(2) <= at <= found.end(2) or (found.start(2) <= at and _same_word(command[found.start(2) : at])):
            yield found[1]
    for found in _ITERATED.finditer(command):
        if found.start(2) <= at <= found.end(2):
            yield found[1]
    for found in _READ.finditer(command):
        start, end = _statement(command, found.start())
        if start <= at <= end:
            yield from found[2].split()
    start, _ = _statement(command, at)
    if re.match(r"\s*set\s+--", command[start:at]):
        yield "@"
    called = re.match(r"\s*([A-Za-z_]\w*)\s", command[start:at])
    if called and re.search(rf"(?:^|[\s;]){called[1]}\s*\(\)|function\s+{called[1]}\b", command):
        yield "@"


def _mentions(text: str, names: set[str]) -> bool:
    if "@" in names and re.search(r"\$\{?[\d@*]", text):
        return True
    return any(re.search(rf"\$\{{?!?{re.escape(name)}(?!\w)", text) for name in names if name != "@")
