"""Finds the words of a shell command that a program evaluates as code: `sh -c`, `awk`, `sed`, `python -c`, `eval`.

For every program that evaluates text, the position of its code is known: the argument of an option, the first word that
is no option, all words, or its input. A value after the code is an argument and therefore data. In doubt it is code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import NamedTuple

from noetl.tools.shell.shell_words import Word, documents, enclosing, segments, statements, words

ONE_WORD = re.compile(r"(?!-(?!\d))(?!.*::)[\w@%+=:,./-]*")
_PLAIN = re.compile(r"(?!-(?!\d))(?!.*::)[\w@%+=:,./ -]*")
_DIGITS = re.compile(r"\d*")
_NO_OPTION = re.compile(r"(?!-)(?!\w+::).*", re.DOTALL)
_NO_REFERENCE = re.compile(r"(?!-)[^`$\n;&|]*")


class Program(NamedTuple):
    """How a program finds its code."""

    options: str = ""  # pattern of options whose argument is code
    first: bool = False  # the first word that is no option is code, if no such option is given
    script: bool = False  # the first word that is no option is a file with code; without one its input is code
    every: bool = False  # every word is code
    joined: bool = False  # its words are joined to one text
    reads: bool = False  # its input is code
    takes: str = ""  # pattern of options with an argument that is not code
    pattern: re.Pattern[str] = _PLAIN


_SHELL = Program(r"-[A-Za-z]*c|--command", script=True, takes=r"[-+][A-Za-z]*[oO]|--rcfile|--init-file")
_EVERY = Program(every=True)
PROGRAMS: dict[str, Program] = {
    r"(?:ba|da|z|k|mk|a|fi|c|tc|rba)?sh": _SHELL,
    r"busybox|toybox|capsh": _SHELL,
    r"python[\d.]*|pypy[\d.]*": Program(r"-[A-Za-z]*c", script=True, takes=r"-[WX]"),
    r"perl[\d.]*|ruby[\d.]*": Program(r"-[A-Za-z0-9.]*[eE]", script=True),
    r"node|nodejs|deno|bun|julia|elixir|lua[\d.]*|guile|php[\d.]*|R|Rscript|osascript|groovy|tclsh[\d.]*": Program(
        r"-[A-Za-z]*[eprcREB]|--eval|--print|--execute|--run|eval", script=True
    ),
    r"[gmn]?awk|original-awk|busybox-awk": Program(
        r"--source|-e", first=True, takes=r"-[Fv]|--assign|--field-separator|-f|--file"
    ),
    r"g?sed": Program(r"-[A-Za-z]*e|--expression", first=True, takes=r"-[lf]|--file|--line-length", pattern=_DIGITS),
    r"eval": Program(every=True, joined=True),
    r"trap|source|\.|alias|bind|complete|compgen|hash|history|fc|enable|coproc": Program(every=True, reads=True),
    r"ssh|slogin|watch|expect|m4|gnuplot|emacs|gdb|lldb|vim?|view|ex|nvim|env -S": Program(every=True, reads=True),
    r"at|batch|crontab|parallel|ed|red|dc|tclsh|sg|sqlite3": Program(every=True, reads=True),
    r"g?make|ninja|just": Program(r"--eval(?:=.*)?|-E", every=True, reads=True, pattern=_NO_REFERENCE),
    r"su|runuser|script|flock|psql|mysql|mariadb": Program(
        r"-[A-Za-z]*[ce]|--command|--execute|-cmd", reads=True, pattern=ONE_WORD
    ),
    r"git": Program(
        r"-c|--config-env|--upload-pack|--receive-pack|--exec|-[uxO]|--open-files-in-pager|--\w+(?:-\w+)?-filter|--setup|foreach|run|"
        r"(?:core|sequence)\.(?:fsmonitor|pager|editor|sshCommand|hooksPath|askPass|gitProxy)|(?:alias|pager)\.\S+|"
        r"\S+\.(?:cmd|command|textconv|clean|smudge|process|driver|helper|program|external)",
        pattern=_NO_OPTION,
    ),
    r"npx|pnpx|bunx": Program(r"-c|--call"),
    r"strace|ltrace": Program(r"-[A-Za-z]*o|--output", pattern=ONE_WORD),
    r"socat|nc|ncat|netcat": Program(every=True, pattern=ONE_WORD),
    r"mapfile|readarray": Program(r"-[A-Za-z]*C"),
    r"scp|sftp": Program(r"-[oSDFJ]|-o.*", pattern=_NO_OPTION),
    r"tar|bsdtar|rsync|zip|sort|split|man|less": Program(
        r"--checkpoint-action(?:=.*)?|--to-command(?:=.*)?|--use-compress-program(?:=.*)?|--rsh(?:=.*)?|--compress-program(?:=.*)?|"
        r"--filter(?:=.*)?|--info-script(?:=.*)?|--new-volume-script(?:=.*)?|-TT|--unzip-command|-P|-[IeFS]",
        pattern=_NO_OPTION,
    ),
}
_GIT_DATA = re.compile(r"(?:user|author|committer|color|advice|init|safe|i18n|status)\.\w+=")  # no code
_TABLE = [(re.compile(name), program) for name, program in PROGRAMS.items()]
_CODE_FILE = re.compile(r"-[A-Za-z]*f|--file|--rcfile|--init-file")
_CODE_INPUT = re.compile(r"(?:-[A-Za-z]*f|--(?:file|rcfile|init-file)=)(?:-$|/dev/(?:stdin|fd/)|/proc/self/fd/)")
_CODE_PROCESS = re.compile(r"(?:-[A-Za-z]*f|--(?:file|rcfile|init-file)=)<\(")
# Functions with which code of other languages evaluates its arguments.
EVALUATING = re.compile(
    r"\b(?:system|popen|getline|eval|exec[lvpe]*|exec\w+Sync|execSync|spawn\w*|subprocess|child_process|qx|compile|__import__|runpy|pty|"
    r"getattr|importlib|ctypes|Function|runIn\w+|uplevel|subst)\b"
)
# Shell code that evaluates what it reads: a shell, `eval`, arithmetic.
READS_CODE = re.compile(
    r"(?<![\w-])(?:eval|source|trap|xargs|parallel|let|declare|typeset|(?:ba|da|z|k|a)?sh|python\S*|perl|awk)(?![\w-])|"
    r"(?:^|[;&|({]\s*)\.\s|\(\(|\$\[|\w\[|-(?:eq|ne|lt|le|gt|ge)\s"
)
# In other languages: a pipe to a command in awk; backquotes, `s///e` and `open` of perl.
_AWK_PIPE = re.compile(r"\bprintf?\b[^;}\n]*(?<!\|)\|(?!\|)")
_PERL_CODE = re.compile(r"`|/[a-z]*e[a-z]*\s*(?:$|[;})])|\bopen\b|\bdo\b|\brequire\b|(?<!<)<(?:ARGV)?>(?!>)")
# A script of sed that executes lines: the flag `e` of `s`, or the command `e` after an address.
SED_EXECUTES = re.compile(
    r"[^\w\s\\][gIMp\d]*e[gIMp\d]*\s*(?:$|[;}\n])|(?:^|[\n;{])\s*(?:[\d$,~+]|/[^/]*/)*!?\s*e(?:\s|$|[;}])", re.MULTILINE
)
_EVALUATING_MODULES = frozenset({"timeit", "code", "pdb", "asyncio", "cProfile", "trace"})
_MODULE = re.compile(r"-[A-Za-z]*m")
_INTERACTIVE = re.compile(r"-[A-Za-z]*i[A-Za-z]*")
_PERL_LOOP = re.compile(r"-[A-Za-z0-9.]*[np][A-Za-z0-9.]*")
_SHELL_VARIABLE = re.compile(r"\$\{?(?:SHELL|BASH|0)\b")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(?:\[[^\]]*\])?\+?=")
# Programs that start no other program.
INERT = frozenset({
    "echo", "printf", "cat", "cp", "mv", "rm", "mkdir", "rmdir", "ls", "curl", "wget", "grep", "egrep", "fgrep",
    "test", "[", "[[", "true", "false", ":", "date", "touch", "chmod", "chown", "ln", "tee", "head", "tail", "wc",
    "cut", "tr", "sort", "uniq", "basename", "dirname", "realpath", "sleep", "read", "export", "declare", "local",
    "readonly", "unset", "set", "shift", "return", "exit", "cd", "pwd", "apt", "apt-get", "pip",
    "stat", "file", "which", "type", "md5sum", "sha256sum", "base64", "jq", "diff", "cmp", "gzip",
    "gunzip", "zcat", "install", "brew",
})  # fmt: skip

# Names of programs that are also words; they count only where a command begins.
_AMBIGUOUS = frozenset({
    ".", "at", "ed", "ex", "script", "source", "hash", "su", "sg", "view", "R", "just", "enable", "batch", "watch",
    "bind", "alias", "complete", "trap", "fc", "man", "less", "sort", "split", "zip", "dc", "m4", "vi",
})  # fmt: skip
# Words before a command: reserved words, and programs that start the one that follows.
_BEFORE = frozenset({
    "if", "then", "else", "elif", "while", "until", "do", "!", "{", "(", "time", "coproc", "env", "nice", "nohup",
    "timeout", "stdbuf", "setsid", "exec", "command", "builtin", "sudo", "doas", "ionice", "chrt", "taskset",
    "unshare", "nsenter", "chroot", "flock", "xargs",
})  # fmt: skip


def precedes(text: str) -> bool:
    """Whether a word can stand before the name of a program."""
    return text in _BEFORE or text.startswith(("-", "(")) or text.isdigit() or _ASSIGNMENT.match(text) is not None


def program_of(name: str) -> Program | None:
    """How a program evaluates code; None for one that does not."""
    base = name.rpartition("/")[2]
    if re.search(r"[?*\[]", base):
        base = next((each for each in ("bash", "sh", "python3") if fnmatchcase(each, base)), base)
    return next((program for pattern, program in _TABLE if pattern.fullmatch(base)), None)


def code_pattern(command: str, at: int) -> re.Pattern[str] | None:
    """What a value at an index must look like if a program evaluates it as code; None if it is data."""
    for begin in (0, *enclosing(command, at)):
        text, index = command[begin:], at - begin
        for start, end in statements(text):
            if start <= index < end:
                pattern = _in_statement(text, start, end, index)
                if pattern is not None:
                    return pattern
    return None


def _in_statement(command: str, start: int, end: int, at: int) -> re.Pattern[str] | None:
    body = next((head for head, first, stop in documents(command) if first <= at < stop), None)
    position = at if body is None else body
    parts = segments(command, start, end)
    own = next((number for number, (first, last) in enumerate(parts) if first <= position < last), 0)
    for number in range(own, len(parts)):
        found = words(command, *parts[number])
        place = _programs(command, found)
        for index, program in place:
            pattern = _evaluates(command, found, index, program, position, number > own)
            if pattern is None and body is not None:
                pattern = _evaluates(command, found, index, program, at, True)
            if pattern is not None:
                return pattern
    return None


def _programs(command: str, found: Sequence[Word]) -> Iterator[tuple[int, Program]]:
    """The words of a command that name programs which evaluate code, wherever they are."""
    first = next((index for index, word in enumerate(found) if not _ASSIGNMENT.match(word.text)), len(found))
    if first < len(found) and found[first].text in INERT:
        return
    for index, word in enumerate(found):
        if word.text.startswith("$") or word.text.startswith("`"):
            program = _dynamic(command, word.text, found, index)
        elif _is_renamed(command, word.text):
            program = _SHELL
        elif word.text.endswith("env") and _splits(found[index:]):
            program = _EVERY
        elif index and _MODULE.fullmatch(found[index - 1].text) and word.text in _EVALUATING_MODULES:
            program = _EVERY._replace(reads=True)
        elif word.text in _AMBIGUOUS and not all(precedes(each.text) for each in found[:index]):
            program = None  # an argument
        else:
            program = program_of(word.text)
        if program is not None:
            yield index, program
        if program is _SHELL and code_words([_expanded(command, each) for each in found[index + 1 :]], program)[0]:
            return  # what follows are arguments of its code


def _is_renamed(command: str, text: str) -> bool:
    """Whether a word is the name of a copy of, or a link to, a program that evaluates code."""
    base = text.rpartition("/")[2]
    if not base or base not in command or not re.search(r"\b(?:ln|cp|mv|install|hash|alias)\b", command):
        return False
    for start, end in statements(command):
        texts = [word.text for word in words(command, start, end)]
        if texts and texts[0] in ("ln", "cp", "mv", "install", "hash", "alias"):
            names = {each.partition("=")[0].rpartition("/")[2] for each in texts[1:]}
            sources = re.findall(r"[\w./-]+", " ".join(texts[1:]))
            if base in names and program_of(base) is None and any(map(program_of, sources)):
                return True
    return False


def _splits(found: Sequence[Word]) -> bool:
    """Whether `env` splits a text into a command."""
    return any(re.match(r"-[a-z]*S|--split-string", word.text) for word in found)


def _dynamic(command: str, text: str, found: Sequence[Word], index: int) -> Program | None:
    """The program that a variable or a substitution names, as far as it is known."""
    if _SHELL_VARIABLE.match(text):
        return _SHELL
    name = re.match(r"\$\{?([A-Za-z_]\w*)", text)
    for value in re.findall(rf"(?<![\w$]){name[1]}=[\"']?([\w./-]+)", command) if name else ():
        if program := program_of(value):
            return program
    is_first = all(precedes(each.text) for each in found[:index])
    for part in re.findall(r"\w[\w./-]*", text) if is_first and not re.fullmatch(r"\$\{?\w+\}?", text) else ():
        if (program := program_of(part)) and part not in _AMBIGUOUS:
            return program
    has_option = index + 1 < len(found) and re.fullmatch(r"-[A-Za-z]*[ce]", found[index + 1].text)
    return _SHELL if is_first and has_option else None


def _evaluates(
    command: str, found: Sequence[Word], index: int, program: Program, at: int, is_input: bool
) -> re.Pattern[str] | None:
    """The pattern for a value at `at` if the program at `index` evaluates it."""
    arguments = [_expanded(command, word) for word in found[index + 1 :]]
    code, script = code_words(arguments, program)
    if is_input or at < found[index].start or any(_is_redirected(command, found, word, at) for word in arguments):
        from_input = program.reads or (program.script and not code and _is_input(script))
        from_input = from_input or any(
            _CODE_FILE.fullmatch(one.text) and _is_input(two.text) for one, two in pairwise(found)
        )
        from_input = from_input or any(_CODE_INPUT.match(each.text) for each in arguments)
        if script is not None and re.match(r"[<>]\(", script):
            from_input = from_input or program.script
        is_python = program.script and "py" in found[index].text
        from_input = from_input or (is_python and any(_INTERACTIVE.fullmatch(each.text) for each in arguments))
        from_input = from_input or any(evaluates_text(found[index].text, program, each.text) for each in code)
        runs_words = any(word.text in ("xargs", "parallel") for word in found[:index])
        return ONE_WORD if from_input or (runs_words and (code or program.script)) else None
    word = next((each for each in arguments if each.start <= at < each.end), None)
    if word is None:
        return None
    if _CODE_PROCESS.match(word.text) or (
        word.text.startswith("<(") and _CODE_FILE.fullmatch(found[found.index(word) - 1].text)
    ):
        return ONE_WORD
    if _GIT_DATA.match(word.text) and word.start + word.text.index("=") < at and program.pattern is _NO_OPTION:
        return None
    if program.every or word in code:
        first = next((each for each in arguments if each.text != "--"), None)
        follows = program.joined and word is not first
        return _PLAIN if follows else _at_start(command, word, at, program, word in code)
    if program.pattern is _NO_OPTION:
        return ONE_WORD if re.match(r"\w+::", word.text) else _NO_OPTION  # `ext::` of git is a command
    if "perl" in found[index].text and re.match(r"-[A-Za-z0-9]*[mM]", word.text):
        return ONE_WORD  # `-Mmodule;code`
    if "perl" in found[index].text and any(_PERL_LOOP.fullmatch(each.text) for each in arguments):
        return ONE_WORD  # `perl -n` and `perl -p` open a file name with `|` as a command
    return ONE_WORD if program.script and not code and word.text == script else None


def evaluates_text(name: str, program: Program, code: str) -> bool:
    """Whether code evaluates text that it reads."""
    if program is _SHELL:
        return READS_CODE.search(code) is not None
    if EVALUATING.search(code):
        return True
    others = {"awk": _AWK_PIPE, "perl": _PERL_CODE, "sed": SED_EXECUTES}
    return any(each in name and pattern.search(code) is not None for each, pattern in others.items())


def _expanded(command: str, word: Word) -> Word:
    """A word that is one variable, with the option that the command assigns to the variable."""
    name = re.fullmatch(r"\$\{?([A-Za-z_]\w*)(?:\[[@*0]\])?\}?", word.text)
    option = re.search(rf"(?<![\w$]){name[1]}=[\"'(]?(-[\w-]+)", command) if name else None
    return word if option is None else word._replace(text=option[1])


def _is_redirected(command: str, found: Sequence[Word], word: Word, at: int) -> bool:
    """Whether a value is in a here-string or in a process whose output is the input."""
    if not word.start <= at < word.end:
        return False
    number = found.index(word)
    return number > 0 and re.match(r"\d*<(?!\()", found[number - 1].text) is not None


def _is_input(script: str | None) -> bool:
    return script is None or re.fullmatch(r"-|/dev/stdin|/dev/fd/\d+|/proc/self/fd/\d+", script) is not None


def code_before(command: str, at: int) -> tuple[str, bool] | None:
    """The code whose argument is the word at an index, and whether it is code of a shell.

    Code of other languages is returned only if it has a function that evaluates text."""
    for start, end in statements(command):
        for part in segments(command, start, end):
            if not part[0] <= at < part[1]:
                continue
            found = words(command, *part)
            for index, program in _programs(command, found):
                if found[index].start >= at:
                    continue
                code = _code_of(command, part, [_expanded(command, word) for word in found[index + 1 :]], program)
                if program is _SHELL and code and code[0].end <= at:
                    return code[0].text, True
                if program is not _SHELL and any(
                    evaluates_text(found[index].text, program, each.text) for each in code
                ):
                    return code[0].text, False
    return None


def foreign_code(command: str) -> Iterator[Word]:
    """The code of other languages in single quotes."""
    for start, end in statements(command):
        for part in segments(command, start, end):
            found = words(command, *part)
            for index, program in _programs(command, found):
                code = () if program is _SHELL else code_words(found[index + 1 :], program)[0]
                for word in code:
                    raw = command[word.start : word.end]
                    if raw[0] == raw[-1] == "'" and "'" not in raw[1:-1] and not program.every:
                        yield word


def reads_environment(command: str, names: set[str]) -> bool:
    """Whether code of another language names one of these variables and has a function that evaluates text."""
    for start, end in statements(command):
        for part in segments(command, start, end):
            found = words(command, *part)
            for index, program in _programs(command, found):
                code = _code_of(command, part, found[index + 1 :], program)
                for word in code if program is not _SHELL else ():
                    mentioned = names & set(re.findall(r"[A-Za-z_]\w*", word.text))
                    if mentioned and evaluates_text(found[index].text, program, word.text):
                        return True
    return False


def _code_of(command: str, part: tuple[int, int], arguments: Sequence[Word], program: Program) -> Sequence[Word]:
    """The code of a program: the words with code, or the here-documents that it reads."""
    code, script = code_words(arguments, program)
    if code or not program.script or not _is_input(script):
        return code
    bodies = [span[1:] for span in documents(command) if part[0] <= span[0] < part[1]]
    return [Word(*body, command[slice(*body)]) for body in bodies]


def code_words(arguments: Sequence[Word], program: Program) -> tuple[Sequence[Word], str | None]:
    """The words with code, and the first word that is no option."""
    code: list[Word] = []
    first: Word | None = None
    wants = skips = ended = False
    for number, word in enumerate(arguments):
        text = word.text
        if text.startswith(("<", ">")) and not re.match(r"[<>]\(", text):
            skips = text in ("<", ">", ">>", "<<", "<<<")
        elif re.fullmatch(r"\d+(?:<|>|<<<|>>)", text):
            skips = True
        elif skips:
            skips = False
        elif wants and not (text.startswith("-") and program is _SHELL and number + 1 < len(arguments)):
            code.append(word)
            wants, ended = False, program.script and arguments[number - 1].text.endswith(("c", "command"))
        elif program.options and not ended and (found := re.match(rf"(?:{program.options})(?:=|$)", text)):
            wants = not found.group().endswith("=") and "=" not in text
            if "=" in text:
                code.append(word)
        elif (
            program.options and not ended and re.match(rf"(?:{program.options})(?=\W|$)", text) and text.startswith("-")
        ):
            code.append(word)  # the option and its argument are one word
        elif program.takes and re.fullmatch(program.takes, text):
            skips = True
        elif first is None and not (text.startswith(("-", "+")) and len(text) > 1):
            first = word
            ended = ended or program.script
    if program.first and first is not None and not code:
        code.append(first)
    return code, first.text if first is not None else None


def _at_start(command: str, word: Word, at: int, program: Program, is_code: bool) -> re.Pattern[str]:
    """The pattern for a value in code: at the beginning of a command it is one word."""
    before = command[word.start : at].rstrip(" \t\"'$\\\n")
    names_command = precedes(re.split(r"[\s;|&({`\"']", before)[-1]) or before.endswith("eval")
    if program.pattern is _DIGITS:  # sed: text in `s/a/.../` has no delimiter and no line break
        inside = re.search(r"(?:^|[;{}\s\d$'\"])s([^\w\s\\]).*$", command[word.start : at], re.DOTALL)
        flags = re.search(r"[/|,#!][gIipm0-9]*[ew]", command[at : word.end])
        if not inside or flags or inside[1] in "@%+=: .-":
            return _DIGITS
        return re.compile(r"[\w@%+=: .-]*")
    if program.pattern is not _PLAIN:
        return ONE_WORD if is_code else program.pattern
    if re.search(r"\$[({]|`", command[word.start : at]):
        return ONE_WORD  # what is substituted may be a command
    return ONE_WORD if not before or names_command or before[-1] in ";|&({`\n" or program.every else _PLAIN
