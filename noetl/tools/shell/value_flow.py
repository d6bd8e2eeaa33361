"""Follows a value through variables, files and descriptors (*carriers*) of a command to programs that evaluate them.

The search does not depend on the order of statements, and refuses in doubt: a statement that reads a carrier makes
carriers of everything that it writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise, takewhile
from typing import NamedTuple

from noetl.tools.shell.program_code import INERT, READS_CODE, Program, code_words, evaluates_text, precedes, program_of
from noetl.tools.shell.shell_words import Word, arithmetic_spans, documents, segments, statements, words

ASSIGNED = re.compile(r"[\"']?([A-Za-z_]\w*)(?:\[[^\]]*\])?\+?=")
ITERATED = re.compile(r"(?<!\w)(?:for|select)\s+([A-Za-z_]\w*)(?:\s+in\s([^\n;]*)|\s*(?=;|\n|\sdo\b))")
READ = re.compile(r"(?<!\w)(?:read|mapfile|readarray)\s+([^\n;|<]*)")
_WRITTEN = re.compile(r"(?:&?>>?\|?)\s*[\"']?([^\s\"';|&()<>]+)")
_COPIES = re.compile(r"tee|cp|mv|install|ln|rsync|scp|sponge")
_LOOP_END = re.compile(r"\s*(?:done|\}|\)|fi|esac)(?!\w)")
_UNPACKS = re.compile(r"g?unzip|bunzip2|unxz|unzstd|unlz4|uncompress|gzip|bzip2|xz|zstd|base64|tar")
# Devices that hold nothing; `/dev/shm` is a folder.
_DEVICE = re.compile(r"/dev/(?!shm/).*")
# Commands that write all variables.
_ALL_VARIABLES = re.compile(
    r"(?<![\w./$-])(?:(?:env|printenv|set|export|declare|typeset|readonly)\s*(?=$|[\n;|&)>])|"
    r"(?:declare|typeset|export|readonly|local)\s+-\w*p|compgen\s+-\w*v)"
)
_GROUP_WRITES = re.compile(r"\s*(?:done|\}|\)|fi|esac)(?!\w)[^;|\n]*>")
_INPUT_SCRIPT = re.compile(r"<\(|(?:/dev/(?:stdin|fd/\d+)|/proc/self/fd/\d+)$")
_LITERAL = re.compile(r"(?<![\w\\\"])'[^']*\s[^']*'")
_NESTED_SHELL = re.compile(r"(?<![\w-])(?:(?:ba|da|z|k|a)?sh|eval|trap|xargs|parallel)(?![\w-])")
_QUOTED = re.compile(r"'([^']*)'|\"((?:[^\"\\]|\\.)*)\"")
_PACKS = re.compile(r"bsdtar|tar|zip|7z\w*|ar|cpio|pax|shar")
_DESCRIPTOR = re.compile(r"/dev/(?:stdin|fd/\d+)|/proc/self/fd/\d+")
_FILE_NAME = re.compile(r"[\w./-]*\w")
_GROUP_PIPE = re.compile(r"(?:\}|(?<!\w)(?:done|fi|esac))(?:\s*\d*[<>]+&?\s*\S+)*\s*\|&?((?:[^\n;|&]|\|&?(?!\|))*)")
_NAMEREF = re.compile(r"(?:declare|typeset|local)\s+(?:-\w+\s+)*-\w*n\w*\s+(\w+)=[\"']?(\w+)")
_NESTED = re.compile(r"(?:[({]|(?<!\w)(?:do|then|else|coproc))\s*((?!\()[^\n;|&(){}]+)")
_FUNCTION_NAME = r"([^\s;&|(){}$`'\"<>=]+)"
_FUNCTION = re.compile(rf"(?:^|[\s;&|])(?:{_FUNCTION_NAME}\s*\(\)|function\s+{_FUNCTION_NAME}\s*(?:\(\))?)\s*[{{(]")
# Files that a program reads as code although no argument names them.
_IMPLIED = {
    "python": r".*\.py",
    "make": r"(?:GNU)?[Mm]akefile|.*\.mk",
    "node": r".*\.[mc]?js",
    "sh": r"\.(?:bash\w*|profile|login|z\w+|kshrc|mkshrc|cshrc)",
    "git": r"\.git.*|config|(?:pre|post|prepare|commit|applypatch|reference|update|push)(?:-[\w-]+)?",
}


class Carriers(NamedTuple):
    """What may hold the value."""

    names: set[str]  # of variables; "@": the positional parameters
    files: set[str]  # the last parts of their names
    is_input: bool  # an input that later commands inherit (`exec <<< value`, `{ ...; } | sh`)


def carriers_of(command: str, at: int | None, names: set[str]) -> Carriers:
    """The carriers of the value at an index, which is stored in these variables; None: only in them."""
    parts = [(span, command[slice(*span)], words(command, *span)) for span in statements(command)]
    if at is not None:
        at = next((head for head, first, stop in documents(command) if first <= at < stop), at)
    files: set[str] = set()
    is_input = False
    while True:
        size = len(names), len(files), is_input
        for span, text, found in parts:
            is_own = at is not None and span[0] <= at < span[1]
            if not (is_own or _mentions(text, names) or _files(found, files) or _GROUP_WRITES.match(text)):
                continue
            files |= set(_written(command, *span))
            is_input = is_input or re.match(r"\s*exec\s+(?:\{?\w*\}?)?<", text) is not None
            if not is_own:
                reads = READ.findall(command if _LOOP_END.match(text) or calls(command, *span) else text)
                names |= {name for read in reads for name in re.findall(r"(?<![\w-])[A-Za-z_]\w*", read)}
                names |= {"BASH_REMATCH"} if "=~" in text else set()
        if is_input:
            names |= {name for read in READ.findall(command) for name in re.findall(r"(?<![\w-])[A-Za-z_]\w*", read)}
        names |= {name for name, value in _assigned(command) if _mentions(value, names) or _mentions_file(value, files)}
        names |= {name for pair in _NAMEREF.findall(command) if names & set(pair) for name in pair}
        names |= {
            name
            for name, value in ITERATED.findall(command)
            if _mentions(value or "$@", names) or _mentions_file(value, files)
        }
        if size == (len(names), len(files), is_input):
            return Carriers(names, files, is_input)


def evaluates(command: str, carriers: Carriers) -> bool:
    """Whether a program evaluates one of the files, or an input that it inherits."""
    command = _without_wrappers(command)
    for nested in _NESTED.finditer(command):
        found = words(command, *nested.span(1))
        if _reads_input(found) and not any(re.match(r"\d*<", word.text) for word in found):
            return True
    for group in _GROUP_PIPE.finditer(command):
        piped = (words(command, *part) for part in segments(command, *group.span(1)))
        if "\x01" in command[: group.start()] and any(map(_reads_input, piped)):
            return True
    for start, end in statements(command):
        before: list[Word] = []
        for part in segments(command, start, end):
            found = words(command, *part)
            if carriers.is_input and _reads_input(found):
                return True
            if carriers.files and (
                _evaluates_file(found, before, carriers.files) or _evaluates_any_file(command, found)
            ):
                return True
            before += found
    return False


def _evaluates_file(found: Sequence[Word], before: Sequence[Word], files: set[str]) -> bool:
    named = _files(found, files)
    if any(_is_program(found, index) for index in named):
        return True
    for index, program in _interpreters(found):
        implied = next((pattern for name, pattern in _IMPLIED.items() if name in found[index].text), "(?!)")
        if any(re.fullmatch(implied, file) for file in files):
            return True
        if named and any(word.text == "{}" for word in found[index:]):
            return True  # `find -name file -exec sh {}`
        if program.every and any(number > index and _executes(found, index, number, files) for number in named):
            return True
        if found[index].text == "trap":
            continue
        code, script = code_words(list(found[index + 1 :]), program)
        if any(found[number] in code for number in named):
            return True  # `awk "$(cat file)"`
        has_value = bool(named or _files(before, files))
        if has_value and any(evaluates_text(found[index].text, program, word.text) for word in code):
            return True
        if has_value and any(word.text in ("xargs", "parallel") for word in found[:index]):
            return True
        if any(number > index and _is_code_file(found, number, script, bool(code)) for number in named):
            return True
        if (named or _files(before, files)) and _reads_input(found[index:]):
            return True
    return False


def _is_program(found: Sequence[Word], index: int) -> bool:
    """Whether the word at an index is the program, not a file of arguments (`xargs -a file`)."""
    return (
        not _is_list(found, index)
        and not ASSIGNED.match(found[index].text)
        and all(precedes(word.text) for word in found[:index])
    )


def _is_list(found: Sequence[Word], index: int) -> bool:
    """Whether the word at an index is a file with arguments for `xargs`."""
    is_option = index > 0 and re.fullmatch(r"-a|--arg-file", found[index - 1].text) is not None
    return is_option and any(word.text == "xargs" for word in found[:index])


def _executes(found: Sequence[Word], index: int, number: int, files: set[str]) -> bool:
    """Whether the code of `trap` executes one of the files; `trap 'rm file' EXIT` only names it."""
    code = found[number].text
    if found[index].text != "trap" or re.search(r"[$`<]", code):
        return True
    return any(_mentions_file(name, files) for name in _executed(code))


def _is_code_file(found: Sequence[Word], number: int, script: str | None, has_code: bool) -> bool:
    """Whether the file at an index is a script, or the argument of an option before the script."""
    texts = [word.text for word in found]
    if texts[number] == script and not has_code:
        return True
    position = texts.index(script) if script in texts else len(texts)
    return number <= position and texts[number - 1].startswith(("-", "+")) and number > 1


def _reads_input(found: Sequence[Word]) -> bool:
    """Whether a program of a command evaluates its input."""
    for index, program in _interpreters(found):
        code, script = code_words(list(found[index + 1 :]), program)
        is_described = script is not None and _DESCRIPTOR.fullmatch(script) is not None
        if program.reads or is_described or (program.script and not code and script in (None, "-")):
            return True
    return False


def _interpreters(found: Sequence[Word]) -> Iterator[tuple[int, Program]]:
    for index, word in enumerate(found):
        program = program_of(word.text)
        is_executed = index > 0 and found[index - 1].text in ("-exec", "-execdir", "-ok", "-okdir")
        before = [each.text for at, each in enumerate(found[:index]) if not _is_list(found, at)]
        if "{" in before:  # the head of a function
            before = before[before.index("{") :]
        if program is not None and (is_executed or all(map(precedes, before))):
            yield index, program


def _written(command: str, start: int, end: int) -> Iterator[str]:
    """The files that a statement writes, by the last parts of their names."""
    text = command[start:end]
    for first, last in arithmetic_spans(text):  # `(( a > 5 ))`
        text = text[:first] + text[first:last].replace(">", " ") + text[last:]
    if not _NESTED_SHELL.search(text):
        text = _LITERAL.sub(lambda found: found[0].replace(">", " "), text)  # `awk '$3 > 5'`
    names = _WRITTEN.findall(text)
    for part in segments(command, start, end):
        texts = [word.text for word in words(command, *part)]
        program = next((index for index, text in enumerate(texts) if not precedes(text)), len(texts))
        arguments = [
            text
            for before, text in pairwise(texts[program:])
            if not text.startswith(("-", "<", ">")) and not re.fullmatch(r"\d*(?:<|>|>>|<<<)", before)
        ]
        if _COPIES.fullmatch("".join(texts[program : program + 1]).rpartition("/")[2]):
            names += arguments if texts[program].endswith("tee") else arguments[-1:]
        name = "".join(texts[program : program + 1]).rpartition("/")[2]
        if _PACKS.fullmatch(name):
            names += arguments
        if _UNPACKS.fullmatch(name):
            names += [text.rpartition(".")[0] for text in arguments if "." in text]
        elif name in ("split", "csplit"):  # the names of its files are not known
            names += _executed(command[end:])
        elif name not in INERT:  # the code of a program may write a file that is executed later
            named = set(_FILE_NAME.findall(" ".join(texts[program + 1 :])))
            names += named & set(_executed(command[end:])) if _has_code(texts[program:]) else []
        names += [text.partition("=")[2] for text in texts if text.startswith("of=")]
        names += [text for option, text in pairwise(texts) if option in ("-o", "-O", "--output")]
    for name in names:
        if not _DEVICE.fullmatch(name):
            plain = _plain_names(name.rpartition("/")[2])
            yield from (plain, *_with_literals(command, plain))


def _executed(command: str) -> Iterator[str]:
    """The programs and the files with code that a command executes."""
    for start, end in statements(command):
        for part in segments(command, start, end):
            found = words(command, *part)
            first = next((word for word in found if not precedes(word.text)), None)
            if first is not None:
                yield first.text
            for index, program in _interpreters(found):
                yield code_words(list(found[index + 1 :]), program)[1] or ""


def _has_code(texts: Sequence[str]) -> bool:
    """Whether a program with these arguments evaluates code that is one of them."""
    program = program_of(texts[0]) if texts else None
    return program is not None and bool(code_words([Word(0, 0, text) for text in texts[1:]], program)[0])


def _evaluates_any_file(command: str, found: Sequence[Word]) -> bool:
    """Whether a program executes a file of which only the shell knows the name: `sh $(ls)`, `sh "$1"`."""
    for index, program in _interpreters(found):
        code, script = code_words(list(found[index + 1 :]), program)
        if script is None or code or not program.script:
            continue
        if script == "{}":
            return not any(word.text == "-name" for word in found[:index])
        name = script.rpartition("/")[2] if "(" not in script and "`" not in script else script
        if re.match(r"\$\(|`|\$\{?[\d@*]", name):
            return True
        variable = re.match(r"\$\{?([A-Za-z_]\w*)", name)
        if variable and _is_computed(command, variable[1]):
            return True
    return False


def _is_computed(command: str, variable: str) -> bool:
    """Whether a variable has a text that only the shell knows: of a substitution or an input."""
    texts = [value for name, value in _assigned(command) if name == variable]
    texts += [value for name, value in ITERATED.findall(command) if name == variable]
    is_read = any(variable in re.findall(r"[A-Za-z_]\w*", read) for read in READ.findall(command))
    return is_read or any(re.search(r"\$\(|`", text) for text in texts)


def _without_wrappers(command: str) -> str:
    """The command without the names of functions that execute their arguments: `run() { "$@"; }; run sh file`."""
    for name, body, *_ in _functions(command):
        if re.search(r"(?:^|[;{\n]|&&|\|\||\b(?:do|then))\s*(?:\w+\s+)?\"?\$[@*]", body):
            pattern = rf"(?<![\w./$-]){re.escape(name)}(?=\s+[^\s({{])"
            command = re.sub(pattern, " " * len(name), command)
    return command


def _with_literals(command: str, name: str) -> Iterator[str]:
    """A name with the texts that the command assigns to its variables."""
    for variable in re.findall(r"\$([A-Za-z_]\w*)", name):
        for value in re.findall(rf"(?<![\w$]){variable}=[\"']?([\w./-]+)", command):
            yield name.replace(f"${variable}", value).rpartition("/")[2]


def script_texts(command: str) -> dict[str, str]:
    """The texts in quotes and here-documents that a command writes to files, by the last parts of their names."""
    found: dict[str, str] = {}
    for start, end in statements(command):
        text = _texts(command, start, end)
        for name in _written(command, start, end) if text else ():
            found[name] = f"{found.get(name, '')}\n{text}"
    return found


def _texts(command: str, start: int, end: int) -> str:
    """The texts in quotes and the here-documents of a statement."""
    bodies = [(first, stop) for head, first, stop in documents(command) if start <= head < end]
    before = command[start : min([end, *(first for first, _ in bodies)])]
    texts = [one or two for one, two in _QUOTED.findall(before)]
    for part in segments(command, start, end):
        plain = takewhile(lambda word: not re.match(r"\d*[<>]", word.text), words(command, *part)[1:])
        texts.append(" ".join(word.text for word in plain))
    return "\n".join([*texts, *(command[first:stop] for first, stop in bodies)])


def executed_text(command: str, at: int) -> str | None:
    """The text of the script that a command executes with the argument at an index, if the command itself has it."""
    for start, end in statements(command):
        for part in segments(command, start, end):
            if not part[0] <= at < part[1]:
                continue
            found = [word for word in words(command, *part) if word.start < at]
            programs = list(_interpreters(found))
            if any(_INPUT_SCRIPT.match(word.text) for word in found[1:] if programs):
                return _texts(command, start, end)
            scripts = [word.text.rpartition("/")[2] for word in found if not precedes(word.text)]
            texts = script_texts(command)
            return next((texts[name] for name in scripts[: 1 + bool(programs)] if name in texts), None)
    return None


def scripts_that_read(command: str, at: int) -> dict[str, str]:
    """The scripts, which the command itself has, of programs whose input is the value at an index, by their names."""
    texts = script_texts(command)
    head = next((head for head, first, stop in documents(command) if first <= at < stop), None)
    at = at if head is None else head
    names: set[str] = set()
    for start, end in statements(command) if texts else ():
        for part in segments(command, start, end):
            if not (start <= at < end and at < part[1]):
                continue
            found = [word.text for word in words(command, *part)]
            is_own = part[0] <= at
            if not is_own or head is not None or "<" in command[part[0] : at]:
                names |= {two.rpartition("/")[2] for one, two in pairwise(["", *found]) if ">" not in one}
    return {name: re.sub(r"#!.*", "", text) for name, text in texts.items() if name in names}


def sourced_text(command: str) -> str:
    """The texts of the scripts, which the command itself has, that its shell reads with `.` or `source`."""
    texts = script_texts(command)
    names = {name.rpartition("/")[2] for name in re.findall(r"(?<![\w./-])(?:\.|source)\s+[\"']?([\w./-]+)", command)}
    return "\n".join(text for name, text in texts.items() if name in names)


def executed_scripts(command: str) -> set[str]:
    """The last parts of the names of all files that a command executes as code, and those that `make` reads."""
    found = {name.rpartition("/")[2] for name in _executed(command) if name}
    return found | {"Makefile", "makefile", "GNUmakefile"} if re.search(r"(?<![\w./-])g?make(?!\w)", command) else found


def _plain_names(text: str) -> str:
    """The text with `$name` for `${name}`."""
    return re.sub(r"\$\{(\w+)\}", r"$\1", text)


def calls_of_function(command: str, at: int) -> Iterator[tuple[str, int]]:
    """The command with the value in place of each call of the function around an index, and where the value is then."""
    inside = [found for found in _FUNCTION.finditer(command, 0, at) if command.find("}", at) >= 0]
    if not inside or not command[inside[-1].end() : at].count("{") >= command[inside[-1].end() : at].count("}"):
        return
    name = next(group for group in inside[-1].groups() if group is not None)
    for found in re.finditer(rf"(?<![\w./$-]){re.escape(name)}(?![\w.(-]|\s*\()", command):
        if not inside[-1].start() <= found.start() < at:
            before, after = command[: found.start()], command[found.end() :]
            yield before + "echo \x01 " + after, found.start() + 5


def calls(command: str, start: int, end: int) -> list[str]:
    """The functions of a command that a statement calls."""
    text = command[start:end]
    return [name for name, _, first, last in _functions(command) if not first <= start < last and _names(text, name)]


def evaluates_input_of_function(command: str, at: int) -> bool:
    """Whether the value at an index is the input of a function with code that evaluates what it reads."""
    start, end = next(((first, last) for first, last in statements(command) if first <= at < last), (at, at))
    called = calls(command, start if "<" in command[start:end] else at, end)
    return any(READS_CODE.search(body) for name, body, *_ in _functions(command) if name in called)


def _functions(command: str) -> Iterator[tuple[str, str, int, int]]:
    """The functions of a command: name, text, and where they begin and end."""
    for found in _FUNCTION.finditer(command):
        opening = command[found.end() - 1]
        depth, position = 1, found.end()
        while depth and position < len(command):
            depth += {opening: 1, "}" if opening == "{" else ")": -1}.get(command[position], 0)
            position += 1
        name = next(group for group in found.groups() if group is not None)
        yield name, command[found.end() : position], found.start() + 1, position


def _names(text: str, name: str) -> bool:
    """Whether a text has a name as a word."""
    return re.search(rf"(?<![\w./$-]){re.escape(name)}(?![\w.(-]|\s*\()", text) is not None


def mentions_file(text: str, files: set[str]) -> bool:
    """Whether an expression reads the text of one of the files; the size of a file is a number."""
    return _mentions_file(SIZES.sub("", text), files)


SIZES = re.compile(r"\$\(\s*(?:wc|stat|du|cksum|grep\s+-\w*c)(?!\w)[^()]*\)")


def _files(found: Sequence[Word], files: set[str]) -> list[int]:
    """The indexes of words that name one of the files."""
    return [index for index, word in enumerate(found) if mentions_file(word.text, files)]


def _mentions_file(text: str, files: set[str]) -> bool:
    text = _plain_names(text)
    if re.search(r"[*?\[]", text):
        patterns = [word.strip("\"'").rpartition("/")[2] for word in text.split()]
        if any(fnmatchcase(file, pattern) for file in files for pattern in patterns if re.search(r"[*?\[]", pattern)):
            return True
    return any(re.search(rf"(?<![\w.-]){re.escape(file)}(?![\w.-])", text) for file in files if file)


def _assigned(command: str) -> Iterator[tuple[str, str]]:
    """Variables and the texts that are assigned to them."""
    for start, end in statements(command):
        for part in segments(command, start, end):
            for word in words(command, *part):
                if found := ASSIGNED.match(command, word.start):
                    yield found[1], SIZES.sub("", command[found.end() : word.end])


def _mentions(text: str, names: set[str]) -> bool:
    if "@" in names and re.search(r"\$\{?!?[\d@*]|\$\{!#", text):
        return True
    if text.strip("\"'") in names or (names and _ALL_VARIABLES.search(text)):
        return True  # the name itself, which arithmetic evaluates, or all variables
    return any(re.search(rf"\$\{{?!?{re.escape(name)}(?!\w)", text) for name in names if name != "@")
