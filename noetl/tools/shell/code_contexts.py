"""Finds the places of a shell command at which a value would be evaluated as code.

A bound value is a reference to a variable (`value_binding`), which the shell expands without evaluating it. At some
places an expanded value is evaluated all the same:

    arithmetic     (( x )), $(( x )), let, [[ x -eq 1 ]], a[x]=1, ${a[x]}, ${a:x}, declare -i, for (( ... ))
    names          declare x, read x, unset x, printf -v x, [[ -v x ]]: a subscript in the name is evaluated
    nested code    sh -c, eval, trap, source, ssh, awk, sed, python -c, a pipe or a here-document into an interpreter
                   (`program_code`)

At these places only values are accepted that cannot be code: numbers, identifiers, or text without metacharacters. The
same applies to a value that is stored in a variable or a file which such a place reads. The search is by patterns and
refuses in doubt: a refused value can always be passed in `env:` or in a list of arguments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from noetl.tools.shell.program_code import (
    EVALUATING,
    ONE_WORD,
    READS_CODE,
    SED_EXECUTES,
    code_before,
    code_pattern,
    foreign_code,
    precedes,
    reads_environment,
)
from noetl.tools.shell.shell_words import (
    HEREDOC,
    Word,
    arithmetic_spans,
    dequoted,
    documents,
    enclosing,
    is_literal,
    segments,
    statements,
    words,
)
from noetl.tools.shell.value_flow import (
    ASSIGNED,
    ITERATED,
    READ,
    SIZES,
    calls,
    calls_of_function,
    carriers_of,
    evaluates,
    evaluates_input_of_function,
    executed_scripts,
    executed_text,
    mentions_file,
    script_texts,
    scripts_that_read,
    sourced_text,
)

MARK = "\x01"  # stands for a value in the text of a command
_SHELLS = r"(?:[\w./-]*/)?(?:ba|da|z|k|mk|a|fi|c|tc|rba)?sh(?![\w.-])|(?:[\w./-]*/)?busybox(?![\w.-])"
_SHELL = re.compile(rf"(?<![\w./$-])(?:{_SHELLS})")
_CODE_VARIABLE = (
    r"(?:PROMPT_COMMAND|BASH_ENV|ENV|PS[0-4]|LD_\w+|PATH|SHELL|EDITOR|VISUAL|PAGER|\w+_PAGER|LESSOPEN|LESSCLOSE|GIT_\w+|PERL\w*|"
    r"PYTHON\w*|RUBY\w*|NODE_OPTIONS|JAVA_TOOL_OPTIONS|MAKEFLAGS|TAR_OPTIONS|RSYNC_RSH|IFS|BASH_ARGV0|BASH_FUNC_\w+%%)"
)
_CODE_VARIABLES = re.compile(rf"{_CODE_VARIABLE}\+?=")
_CODE_NAME = re.compile(_CODE_VARIABLE)
_DESCRIPTOR = re.compile(r"[<>]&\s*[\"']?$")
NESTED = "code of a nested shell or program"
_DECLARING = (
    r"(?:declare|typeset|local|readonly|export|integer|unset|read|mapfile|readarray|getopts|printf\s+-v|wait\s+-p)"
)
_NAMING = re.compile(
    rf"(?<![\w./$-])(?:{_DECLARING}(?:\s+-[A-Za-z]*)*(?:\s+(?:\d*[<>]+&?\s*)?[^\s;|&<>]+)*\s+|printf\s+-v|read\s+(?:-\w+\s+)*-\w*a|wait\s+-p)[\"']?\w*$"
)
_IS_SET = re.compile(r"(?:\[\[?|test)\s.*-[vR]\s+[\"']?$", re.DOTALL)
_ATTRIBUTES = r"(?<![\w./$-])(?:declare|typeset|local|readonly|export)\s+(?:[-+]\w+\s+)*-[A-Za-z]*"
_NAMEREF = re.compile(rf"{_ATTRIBUTES}n\w*\s+(?:[-+]\w+\s+)*\w+=[\"']?$")
_REFERENCES = re.compile(rf"{_ATTRIBUTES}n\w*\s+(?:[-+]\w+\s+)*([\w =]+)")
_INTEGER = re.compile(rf"{_ATTRIBUTES}i[A-Za-z]*\s")
# Variables of a shell that evaluate what is assigned to them as an arithmetic expression.
_INTEGERS = frozenset({"RANDOM", "SRANDOM", "OPTIND", "HISTCMD", "SECONDS", "LINENO", "BASH_SUBSHELL", "BASHPID"})
_COMPARISON = re.compile(r"\s-(?:eq|ne|lt|le|gt|ge)\s")
_TEST = re.compile(r"\[\[\s")
_SUBSCRIPT = re.compile(r"[A-Za-z_]\w*\[[^\]\n]*$|=\((?:[^)]*\s)?\[[^\]\n]*$")
_PARAMETER = r"\$\{!?(?:\w+|[@*])(?:\[[^\]]*\])?:"
_SUBSTRING = re.compile(rf"{_PARAMETER}(?:[^-=?+}}][^}}]*)?$")
_SEPARATOR = re.compile(r"\n|;|&&|\|\||(?<!>)&(?!>)|\bthen\b|\bdo\b|\belse\b")
_NUMBER = re.compile(r"[+-]?\d{1,18}")
_NAME = re.compile(r"[A-Za-z_]\w*")
_POSITIONAL = r"\$\{?[\d@*]|\$\{![\d@*#]"
_ARITHMETIC = re.compile(
    r"\$\[(?P<b>[^\]]*)\]|(?<![\w./$-])let\s(?P<c>[^\n;]*)|"
    r"\[\[(?P<d>(?:(?!\]\]).)*?\s-(?:eq|ne|lt|le|gt|ge)\s(?:(?!\]\]).)*)|[A-Za-z_]\w*\[(?P<e>[^\]\n]*)\]|"
    rf"{_PARAMETER}(?P<f>[^}}=?+-][^}}]*)\}}|[(\s]\[(?P<h>[^\]\n]+)\]\+?=|{_ATTRIBUTES}i\w*\s(?P<g>[^\n;]*)",
    re.DOTALL,
)


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


@lru_cache(4096)
def place_of(command: str, at: int) -> Place | None:
    """The place at an index of a command, where `MARK` stands for a value; None where every value is only data."""
    command = command.replace("\\\n", "  ")  # continued lines; all indexes stay
    sourced = sourced_text(command)
    if sourced:
        command += f"\n{sourced}"
    return _evaluated(command, at) or next(
        (place for call in calls_of_function(command, at) if (place := _evaluated(*call))), None
    )


def _evaluated(command: str, at: int) -> Place | None:
    return (
        _arithmetic(command, at)
        or _name(command, at)
        or _code(command, at)
        or _through_arguments(command, at)
        or _through_script(command, at)
        or _through_carriers(command, at)
    )


def place_of_argument(command: str, at: int) -> Place | None:
    """The same for a list of arguments, which no shell reads."""
    return _code(command, at) or _through_arguments(command, at)


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
    if _DESCRIPTOR.search(command[:at]):
        return Place(_NUMBER, "the number of a file descriptor, which bash expands twice")
    if any(first <= at < last for first, last in arithmetic_spans(command)):
        return place
    if command.rfind("$[", 0, at) > command.rfind("]", 0, at):
        return place
    start, end = _statement(command, at)
    statement, before = command[start:end], command[start:at]
    if re.search(r"(?<![\w./$-])let\s", before) or _INTEGER.search(before):
        return place
    test = _test_around(command, at)
    if test is not None and _COMPARISON.search(_clause(command, test, at).replace(MARK, " ")):
        return place
    word = _word_at(command, at)
    if word is not None and (assigned := ASSIGNED.match(command, word.start)) and assigned[1] in _INTEGERS:
        return place
    bracket = max(before.rfind("[[ "), before.rfind("[ "), before.rfind("test "))
    if bracket >= 0 and _COMPARISON.search(statement[bracket:].replace(MARK, " ")):
        return place
    if _SUBSCRIPT.search(before) or _SUBSTRING.search(before):
        return Place(_NUMBER, "a subscript or an offset")
    return None


def _test_around(command: str, at: int) -> int | None:
    """Where the `[[` around an index is; None if there is none."""
    test = max((found.start() for found in _TEST.finditer(command, 0, at)), default=-1)
    return test if test > command.rfind("]]", 0, at) else None


def _clause(command: str, test: int, at: int) -> str:
    """The part of a test between `&&` and `||`; the whole test if it has substitutions."""
    end = command.find("]]", at)
    whole = command[test : end if end >= 0 else len(command)]
    if "$(" in whole or "`" in whole:
        return whole
    bounds = [each for each in re.finditer(r"&&|\|\|", whole) if not _quoted(command, test + each.start())]
    start = max((each.end() for each in bounds if test + each.end() <= at), default=0)
    return whole[start : next((each.start() for each in bounds if test + each.start() > at), len(whole))]


def _name(command: str, at: int) -> Place | None:
    start, _ = _statement(command, at)
    test = _test_around(command, at)
    before = command[start if test is None else test : at]
    if _NAMING.search(before) or _IS_SET.search(before) or _NAMEREF.search(before):
        return Place(_NAME, "the name of a variable")
    return None


def _code(command: str, at: int) -> Place | None:
    pattern = code_pattern(command, at)
    if pattern is not None:
        return Place(pattern, NESTED)
    word = _word_at(command, at)
    if word is not None and _CODE_VARIABLES.match(word.text):
        return Place(ONE_WORD, "the value of a variable that programs evaluate")
    if any(_is_command(command, start - 1 - (command[start - 1] == "(")) for start in enclosing(command, at)):
        return Place(ONE_WORD, "a command, through a substitution")
    return None


def _word_at(command: str, at: int) -> Word | None:
    """The word with an index, outside of here-documents."""
    for start, end in statements(command):
        if start <= at < end:
            for part in segments(command, start, end):
                for word in words(command, *part):
                    if word.start <= at < word.end:
                        return word
    return None


def _without_literal_documents(command: str) -> str:
    """A command without the here-documents that no shell expands or evaluates: quoted ones of other programs."""
    for found in HEREDOC.finditer(command):
        line_end = command.find("\n", found.end())
        end = re.escape(dequoted(found[1]))
        body_end = re.compile(rf"^\t*{end}$", re.MULTILINE).search(command, max(line_end, 0))
        line = command[command.rfind("\n", 0, found.start()) + 1 : line_end]
        if body_end and line_end >= 0 and is_literal(found[1]) and not _SHELL.search(line):
            command = command[:line_end] + " " * (body_end.start() - line_end) + command[body_end.start() :]
    return command


def _through_carriers(command: str, at: int) -> Place | None:
    """A place that evaluates a variable, a file or an input in which the value is stored."""
    carriers = carriers_of(command, at, set(_stored(command, at)))
    found = _place_of_names(command, carriers.names) if carriers.names else None
    if found is None and carriers.names & set(_references(command)):
        found = Place(_NAME, "the name of a variable, through a variable")
    if found is None and any(mentions_file(text, carriers.files) for text in _arithmetic_texts(command)):
        found = Place(_NUMBER, "an arithmetic expression, through a file")
    if found is None:
        found = _place_in_scripts(command, carriers.names)
    if found is None and reads_environment(command, carriers.names):
        found = Place(ONE_WORD, "a variable that the code of a program evaluates")
    is_weak = found is None or found.pattern not in (ONE_WORD, _NUMBER, _NAME)
    if is_weak and (evaluates(command, carriers) or evaluates_input_of_function(command, at)):
        found = Place(ONE_WORD, "code of a file or an input that is executed")
    return found


def _through_script(command: str, at: int) -> Place | None:
    """A place in a script that the command itself writes and executes with the value as an argument."""
    text = executed_text(command, at)
    if text and EVALUATING.search(text):
        return Place(ONE_WORD, "an argument that a script evaluates")
    for name, script in scripts_that_read(command, at).items():
        is_shell = "." not in name or name.endswith("sh")
        if EVALUATING.search(script) or (is_shell and READS_CODE.search(script)) or SED_EXECUTES.search(script):
            return Place(ONE_WORD, "an input that a script evaluates")
    return place_of_arguments(text) if text else None


def _place_in_scripts(command: str, names: set[str]) -> Place | None:
    """A place in the scripts that the command itself writes and executes, which evaluates one of these variables."""
    for name, text in script_texts(command).items():
        if name in executed_scripts(command):
            place = _place_of_names(text, names) if names else None
            words_of_text = set(re.findall(r"[A-Za-z_]\w*", text))
            if place is None and names & words_of_text and ("akefile" in name or EVALUATING.search(text)):
                place = Place(ONE_WORD, "a variable that a script evaluates")
            if place is not None:
                return place
    return None


def _references(command: str) -> Iterator[str]:
    """The variables whose values are names of variables (`declare -n`)."""
    for names in _REFERENCES.findall(command):
        yield from (name.partition("=")[0] for name in names.split())


def _through_arguments(command: str, at: int) -> Place | None:
    """A place in the code of a nested shell (`sh -c '...' _ value`) that evaluates its arguments."""
    code = code_before(command, at)
    if code is None:
        return None
    if not code[1]:
        return Place(ONE_WORD, "an argument that the code of a program evaluates")
    exports = re.search(r"(?<![\w./$-])(?:export|declare|typeset)\s+-\w*f", command)  # functions that the code may call
    return place_of_arguments(f"{command}\n{code[0]}" if exports else code[0])


def place_of_arguments(code: str) -> Place | None:
    """A place of shell code that evaluates an argument (`$1`, `$@`)."""
    return _place_of_names(code, carriers_of(code, None, {"@"}).names)


def _place_of_names(command: str, names: set[str]) -> Place | None:
    """A place of a command that evaluates one of these variables."""
    bare = re.compile(rf"(?<![\w])(?:{'|'.join(map(re.escape, sorted(names)))})(?!\w)")
    expanded = _without_literal_documents(command)
    for word in foreign_code(command):  # a shell expands nothing of it, and evaluates nothing
        expanded = expanded[: word.start] + " " * (word.end - word.start) + expanded[word.end :]
    for text in _arithmetic_texts(expanded):
        if bare.search(text) or ("@" in names and re.search(_POSITIONAL, text)):
            return Place(_NUMBER, "an arithmetic expression, through a variable")
    if names & _INTEGERS:
        return Place(_NUMBER, "an arithmetic expression, through a variable")
    if any(map(_CODE_NAME.fullmatch, names)):
        return Place(ONE_WORD, "the value of a variable that programs evaluate, through a variable")
    variables = "|".join(re.escape(name) for name in names if name != "@") or "(?!)"
    positional = f"|{_POSITIONAL}" if "@" in names else ""
    for found in re.finditer(rf"\$\{{?!?(?:{variables})(?!\w){positional}", command):
        at = found.start()
        if found.group().startswith("${!") or re.match(r"[^}]*@[PE]", command[found.end() :]):
            return Place(_NAME, "the name of a variable, through a variable")
        if _DESCRIPTOR.search(command[:at]):
            return Place(_NUMBER, "the number of a file descriptor, which bash expands twice, through a variable")
        place = _name(command, at)
        if place is not None:
            return Place(place.pattern, f"{place.what}, through a variable")
        pattern = code_pattern(command, at)
        if pattern is not None:
            inner = _quoted_code(command, at)
            nested = _place_of_names(inner, names) if inner is not None else Place(pattern, NESTED)
            if nested is not None:
                return Place(nested.pattern, f"{NESTED}, through a variable")
        starts = (start - 1 - (command[start - 1] == "(") for start in enclosing(command, at))
        if any(_is_command(command, start) for start in (at, *starts)):
            return Place(ONE_WORD, "a command, through a variable")
        if (code := code_before(command, at)) is not None and (not code[1] or place_of_arguments(code[0])):
            return Place(ONE_WORD, "an argument that the code of a program evaluates, through a variable")
    return None


def _arithmetic_texts(command: str) -> list[str]:
    """The texts that a shell evaluates as arithmetic expressions."""
    texts = [command[slice(*span)] for span in arithmetic_spans(command)]
    return texts + [next(filter(None, found.groups()), "") for found in _ARITHMETIC.finditer(command)]


def _quoted_code(command: str, at: int) -> str | None:
    """The code of a nested shell in single quotes, in which a variable is expanded only by that shell."""
    word = _word_at(command, at)
    raw = command[word.start : word.end] if word is not None else ""
    is_shell = _SHELL.search(command, 0, word.start) is not None if word is not None else False
    return raw[1:-1] if is_shell and raw[:1] == raw[-1:] == "'" and "'" not in raw[1:-1] else None


def _is_command(command: str, at: int) -> bool:
    """Whether an unquoted variable or a list is the first word of a command: its words are a program and arguments."""
    is_list = re.match(r"\$(?:@|\{@\}|\{\w+\[@\]\})\"", command[at:]) is not None
    for start, end in statements(command):
        if start <= at < end:
            for part in segments(command, start, end):
                found = words(command, *part)
                before = [word.text for word in found if word.start < at - is_list]
                if not any(word.start == at - is_list for word in found):
                    continue
                if all(map(precedes, before)) or before[-1] in ("-exec", "-execdir", "-ok", "-okdir"):
                    return True
    return False


def _is_size(command: str, word: Word, at: int) -> bool:
    """Whether only the size of a file with the value as its name is used: `n=$(wc -l < {{ x }})`."""
    return any(size.start() <= at < size.end() for size in SIZES.finditer(command, word.start, word.end))


def _stored(command: str, at: int) -> Iterator[str]:
    """The variables in which the value at an index is stored."""
    start, end = next(((first, last) for first, last in statements(command) if first <= at < last), (0, len(command)))
    document = next((head for head, first, stop in documents(command) if first <= at < stop), at)
    word = _word_at(command, document)
    if word is not None and (found := ASSIGNED.match(command, word.start)) and not _is_size(command, word, at):
        yield found[1]
    for found in re.finditer(r"\$\{([A-Za-z_]\w*):?=", command[start:at]):
        yield found[1]
    for found in re.finditer(r"printf\s+-v\s*[\"']?([A-Za-z_]\w*)", command[start:at]):
        yield found[1]
    yield "_"  # the last word of the command before
    test = _test_around(command, at)
    if test is not None and "=~" in command[test:].partition("]]")[0]:
        yield "BASH_REMATCH"
    for found in ITERATED.finditer(command):
        if found.start(2) <= at <= found.end(2):
            yield found[1]
    called = calls(command, start, end)
    is_loop_input = bool(called) or re.match(r"\s*(?:done|\}|\)|fi|esac)", command[start:end]) is not None
    for found in READ.finditer(command):
        if is_loop_input or start <= found.start() < end:
            yield from re.findall(r"(?<![\w-])[A-Za-z_]\w*", found[1])
            yield from ("REPLY", "MAPFILE")
    if called or re.search(r"(?<![\w./$-])set\s", command[start:at]):
        yield "@"
