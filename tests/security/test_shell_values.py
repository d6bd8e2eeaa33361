"""Class "shell values": no value of a template is evaluated as shell code, wherever the author writes it.

Each command is run with hostile values that would create a file. It passes when the file does not exist: the value was
data, or the task was refused before a shell started.
"""

from __future__ import annotations

import shutil

import pytest

from noetl.core.language.compile import compile_playbook
from noetl.core.templates.binding import bound_parts, compile_bound
from noetl.testing import run_tool
from noetl.tools.registry import specs
from noetl.tools.shell.value_binding import CannotBind, bind
from tests.security import shell_attacks, shell_flows, shell_ordinary, shell_places, shell_scripts

PAYLOADS = {
    "substitution": "$(touch FILE)",
    "subscript": "a[$(touch FILE)]",
    "separator": "1; touch FILE; #",
    "quotes": "'\"; touch FILE; \"'",
    "backquotes": "`touch FILE`",
    "newline": "x\ntouch FILE\n",
}
COMMANDS = [
    # plain words and quotes
    "echo {{ x }}", 'echo "{{ x }}"', "echo '{{ x }}'", "echo $'{{ x }}'", "echo a{{ x }}b", "echo $(echo {{ x }})",
    'echo "$(echo "{{ x }}")"', "echo `echo {{ x }}`", "cat <<< {{ x }}", "cat <<E\n{{ x }}\nE\n", "cat <<'E'\n{{ x }}\nE\n",
    "cat <<-E\n\t{{ x }}\n\tE\n", "echo ${Y:-{{ x }}}", 'echo "${Y:-{{ x }}}"', "# {{ x }}\necho", "case {{ x }} in *) echo;; esac",
    "[[ {{ x }} == a ]] || true", "[ {{ x }} = a ] || true", "test {{ x }} = a || true", "for i in {{ x }}; do echo $i; done",
    "y={{ x }}; echo $y", "y={{ x }}; echo \"$y\"", "export Y={{ x }}; env", "printf '%s' {{ x }}", "echo > /dev/null {{ x }}",
    "echo {{ x }} | cat", "echo {{ x }} && echo {{ x }}", "cat < <(echo {{ x }})", "f() { echo \"$1\"; }; f {{ x }}",
    # arithmetic
    "echo $(( {{ x }} ))", "(( {{ x }} )) || true", "let y={{ x }} || true", "let 'y = {{ x }}' || true", "[[ {{ x }} -eq 1 ]] || true",
    "[[ 1 -lt {{ x }} ]] || true", "[ {{ x }} -gt 1 ] || true", "test {{ x }} -ge 1 || true", "a[{{ x }}]=1", "echo ${a[{{ x }}]}",
    "declare -a a; a[{{ x }}]=1", "unset 'a[{{ x }}]'", "for (( i={{ x }}; i<3; i++ )); do echo; done",
    "for (( i=0; i<{{ x }}; i++ )); do break; done", "y=abc; echo ${y:{{ x }}}", "y=abc; echo ${y:0:{{ x }}}", "echo $[ {{ x }} ]",
    "declare -i y={{ x }}", "declare -i y; y={{ x }}", "while (( {{ x }} > 5 )); do break; done", "y=$(( 1 + {{ x }} ))",
    "if (( {{ x }} )); then echo; fi", "(( y = {{ x }} )) || true", "y={{ x }}; (( y > 1 )) || true", "y={{ x }}; [[ y -eq 1 ]] || true",
    "y={{ x }}; [[ $y -eq 1 ]] || true", "y={{ x }}; let z=y || true", "y={{ x }}; a[y]=1", "y={{ x }}; z=$y; echo $(( z ))",
    "for y in {{ x }}; do (( y )); done", "read -r y <<< {{ x }}; (( y )) || true", "set -- {{ x }}; echo $(( $1 ))",
    "f() { (( $1 )); }; f {{ x }}",
    # names
    "declare {{ x }}", "read {{ x }} <<< 1", "printf -v {{ x }} 1", "unset {{ x }}", "[[ -v {{ x }} ]] || true", "test -v {{ x }} || true",
    "typeset {{ x }}=1", "local {{ x }}", "mapfile {{ x }} < /dev/null", "getopts a {{ x }} -a",
    # nested code
    "bash -c 'echo {{ x }}'", 'bash -c "echo {{ x }}"', "bash -c {{ x }}", "sh -c 'echo {{ x }}'", "bash -o pipefail -c 'echo {{ x }}'",
    "bash -euo pipefail -c 'echo {{ x }}'", "bash -x -c 'echo {{ x }}'", "bash --norc -c 'echo {{ x }}'", "/bin/sh -c 'echo {{ x }}'",
    "env A=1 bash -c 'echo {{ x }}'", "nice -n 1 sh -c 'echo {{ x }}'", "timeout 5 bash -c 'echo {{ x }}'", "exec sh -c 'echo {{ x }}'",
    "command sh -c 'echo {{ x }}'", "eval echo {{ x }}", "eval 'echo {{ x }}'", 'eval "echo {{ x }}"', "y={{ x }}; eval \"echo $y\"",
    "y={{ x }}; bash -c \"echo $y\"", "trap 'echo {{ x }}' EXIT", "trap \"echo {{ x }}\" EXIT", "trap {{ x }} EXIT", "echo {{ x }} | sh",
    "echo {{ x }} | bash -s", "printf '%s' {{ x }} | bash", "echo '{{ x }}' | sh -x", "bash <<E\necho {{ x }}\nE\n",
    "bash <<'E'\necho {{ x }}\nE\n", "bash -s <<E\n{{ x }}\nE\n", "bash <<< {{ x }}", "sh <<< 'echo {{ x }}'", "source <(echo {{ x }})",
    ". <(echo {{ x }})", "alias y={{ x }}; y || true", "echo a | xargs -I% sh -c 'echo % {{ x }}'", "PROMPT_COMMAND={{ x }} bash -i < /dev/null",
    "BASH_ENV={{ x }} bash -c true", "PS4={{ x }} bash -xc true", "find . -maxdepth 0 -exec sh -c 'echo {{ x }}' ';'",
    "cat <<E | bash\necho {{ x }}\nE\n", "echo {{ x }} | tee /dev/null | sh", "if true; then eval {{ x }}; fi",
    "python3 -c 'import os; os.system(\"{{ x }}\")'", "perl -e 'system(\"{{ x }}\")'", "y={{ x }}; echo $y | sh",
    "(bash -c 'echo {{ x }}')", "{ sh -c 'echo {{ x }}'; }", "echo $(bash -c 'echo {{ x }}')", "bash -c \"$(echo {{ x }})\"",
    "busybox sh -c 'echo {{ x }}'", "dash -c 'echo {{ x }}'", "nohup bash -c 'echo {{ x }}'", "y={{ x }}; trap \"$y\" EXIT",
]  # fmt: skip
LISTS = [
    ["bash", "-c", "echo {{ x }}"], ["sh", "-c", "echo '{{ x }}'"], ["bash", "-o", "pipefail", "-c", "echo {{ x }}"],
    ["env", "A=1", "bash", "-c", "echo {{ x }}"], ["nice", "-n", "1", "bash", "-euo", "pipefail", "-c", "echo {{ x }}"],
    ["/usr/bin/env", "sh", "-c", "(( {{ x }} ))"], ["bash", "-c", "eval {{ x }}"], ["bash", "-c", 'echo "$1"', "_", "{{ x }}"],
    ["timeout", "5", "bash", "-c", "[[ {{ x }} -eq 1 ]]"], ["echo", "{{ x }}"],
]  # fmt: skip


HOSTILE = {**PAYLOADS, **shell_attacks.PAYLOADS}

# Attempts of each case, for the page of the suite.
ATTEMPTS = {
    "test_a_value_in_a_command_is_never_code": len(PAYLOADS),
    "test_a_value_in_a_list_of_arguments_is_never_code": len(PAYLOADS),
    "test_no_program_evaluates_a_value": len(shell_attacks.PAYLOADS),
    "test_no_value_reaches_code_through_variables_files_and_pipes": len(HOSTILE),
}


def attack(command, payload: str, tmp_path) -> bool:
    """Run a command with a hostile value; True if the value was evaluated as code."""
    file = tmp_path / "created"
    value = payload.replace("FILE", str(file))
    rendered = compile_bound(command).evaluate({"x": value})
    run_tool("shell", {"command": rendered, "cwd": str(tmp_path)}, timeout=10)
    return file.exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_value_in_a_command_is_never_code(command, tmp_path):
    if command.startswith(("busybox", "dash")) and not shutil.which(command.split()[0]):
        pytest.skip(f"{command.split()[0]} is not installed")
    for name, payload in PAYLOADS.items():
        assert not attack(command, payload, tmp_path), name


@pytest.mark.slow
@pytest.mark.parametrize("command", shell_attacks.COMMANDS, ids=str)
def test_no_program_evaluates_a_value(command, tmp_path):
    is_whole = isinstance(command, dict) and "{{ x }}" in (str(each).strip() for each in command.values())
    is_whole = is_whole or command == {"commands": ["{{ x }}"]}
    for name, payload in shell_attacks.PAYLOADS.items():
        if is_whole and name == "plain":
            continue  # the value is a program with arguments, by the choice of the author
        rendered = compile_bound(command).evaluate({"x": payload.replace("FILE", str(tmp_path / "created"))})
        fields = rendered if isinstance(rendered, dict) else {"command": rendered}
        run_tool("shell", {**fields, "cwd": str(tmp_path)}, timeout=10)
        assert not (tmp_path / "created").exists(), name


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [*shell_flows.FLOWS, *shell_flows.LISTS, *shell_places.COMMANDS, *shell_scripts.COMMANDS], ids=str
)
def test_no_value_reaches_code_through_variables_files_and_pipes(command, tmp_path):
    for name, payload in HOSTILE.items():
        rendered = compile_bound(command).evaluate({"x": payload.replace("FILE", str(tmp_path / "created"))})
        try:
            if isinstance(rendered, str):
                bind(bound_parts(rendered))
        except CannotBind:
            continue  # the task fails with this error before a shell starts
        run_tool("shell", {"command": rendered, "cwd": str(tmp_path)}, timeout=10)
        assert not (tmp_path / "created").exists(), name


@pytest.mark.parametrize(
    "program", ["docker exec c", "docker compose exec web", "kubectl exec pod --", "podman run img"]
)
@pytest.mark.parametrize("code", ["sh -c 'echo {{ x }}'", "bash -s <<< {{ x }}", "bash -c '(( $1 ))' _ {{ x }}"])
def test_a_shell_in_a_container_is_a_nested_shell(program, code):
    rendered = compile_bound(f"{program} {code}").evaluate({"x": "a[$(id)]"})
    with pytest.raises(CannotBind, match="would be evaluated"):
        bind(bound_parts(rendered))


@pytest.mark.parametrize("command", [*shell_attacks.DATA, *shell_ordinary.COMMANDS])
def test_values_that_are_data_are_accepted(command):
    value = 'a\'b; $(id) "c" | d'
    bind(bound_parts(compile_bound(command).evaluate({"x": value})))


@pytest.mark.parametrize(
    "fields",
    [{"command": "echo a\x00b"}, {"command": ["echo", "a\x00"]}, {"command": "echo", "env": {"A": "\x00"}}, {"script": "echo \x00"},
     {"commands": ["echo \x00"]}, {"command": "{{ x }}"}, {"command": "echo {{ x }}"}, {"command": ["{{ x }}"]},
     {"command": "echo", "cwd": "a\x00b"}, {"command": "echo", "shell": "/bin/sh\x00"}, {"command": "echo", "arguments": ["\x00"]}],
)  # fmt: skip
def test_a_null_character_is_an_error_of_the_task(fields):
    outcome = run_tool("shell", compile_bound(fields).evaluate({"x": "a\x00b"}))
    assert outcome.error.kind in ("schema", "not_found")


@pytest.mark.parametrize(
    "command",
    ["echo {% print x %}", "{% print x %}", "echo {%- print x -%}", "{% if true %}echo '{% print x %}'{% endif %}"],
)
def test_a_value_that_a_statement_writes_is_never_code(command, tmp_path):
    for name, payload in PAYLOADS.items():
        assert not attack(command, payload, tmp_path), name


@pytest.mark.parametrize("value", ["\x01AAAA\x02", "\x01NQ==\x02", "\x01", "a\x02\x01b"])
def test_values_with_the_characters_of_marks_are_data(value, tmp_path):
    text = compile_bound("printf %s {{ x }}").evaluate({"x": value})
    assert run_tool("shell", {"command": text}).data["stdout"] == value
    fields = {"command": 'printf %s "$Y$1"', "env": {"Y": value}, "arguments": [value]}
    assert run_tool("shell", fields).data["stdout"] == value + value


@pytest.mark.parametrize("command", LISTS, ids=" ".join)
def test_a_value_in_a_list_of_arguments_is_never_code(command, tmp_path):
    for name, payload in PAYLOADS.items():
        assert not attack(command, payload, tmp_path), name


@pytest.mark.parametrize(
    ("command", "value", "printed"),
    [
        ("echo {{ x }}", "$(id) `id`; 'a' \"b\"", "$(id) `id`; 'a' \"b\"\n"),
        ("bash -c 'echo \"$1\"' _ {{ x }}", "$(id)", "$(id)\n"),
        ("bash -c 'echo {{ x }}'", "plain text", "plain text\n"),
        ("echo $(( {{ x }} + 1 ))", "41", "42\n"),
        ("[[ {{ x }} -gt 5 ]] && echo yes", "7", "yes\n"),
        ("i=0; name={{ x }}; while (( i < 2 )); do i=$((i+1)); done; echo $name $i", "a;b", "a;b 2\n"),
        ("for i in 1 2; do echo {{ x }}; done", "$(id)", "$(id)\n$(id)\n"),
        ("echo {{ x }} | cat", "a; b", "a; b\n"),
        ("python3 -c 'import sys; print(sys.argv[1])' {{ x }}", "a;b'", "a;b'\n"),
        ("echo push.sh {{ x }}", "a;b", "push.sh a;b\n"),
    ],
)
def test_values_that_are_data_reach_the_program(command, value, printed):
    outcome = run_tool("shell", {"command": compile_bound(command).evaluate({"x": value})})
    assert outcome.error is None, outcome.error
    assert outcome.data["stdout"] == printed


def test_a_refused_value_names_the_place_and_the_safe_spelling():
    rendered = compile_bound("echo a\n(( {{ x }} )) || true").evaluate({"x": "a[$(id)]"})
    outcome = run_tool("shell", {"command": rendered})
    assert outcome.error.kind == "schema"
    assert "line 2 of the command (`(( {{ ... }} )) || true`)" in outcome.error.message
    assert "`env:`" in outcome.error.message and "argument" in outcome.error.message


@pytest.mark.parametrize(
    ("parameter", "block"),
    [
        ('cmd: "{% filter upper %}echo {{ workload.name }}{% endfilter %}"', "filter"),
        ("commands: [echo a, \"{% call '{0}'.format(workload.name) %}{% endcall %}\"]", "call"),
        ('cmd: [echo, "{% if 1 %}{% filter upper %}{{ workload.name }}{% endfilter %}{% endif %}"]', "filter"),
        ('script: "{% for n in [workload.name] recursive %}echo {{ n }}{% endfor %}"', "for ... recursive"),
        ("cmd: echo {% autoescape true %}{{ workload.name }}{% endautoescape %}", "autoescape"),
    ],
)
def test_validation_reports_blocks_that_write_values_as_code(parameter, block):
    text, found = validated(f"kind: shell\n    spec: {{timeout: 5}}\n    {parameter}")
    assert [(each.code, each.line, each.severity) for each in found] == [("template-syntax", 10, "error")]
    assert f"{{% {block} %}}" in found[0].message
    assert text.splitlines()[9][found[0].column - 1 :].startswith(block.split()[0])


def test_validation_accepts_blocks_that_write_values_in_text_that_is_not_code():
    assert validated('kind: noop\n    input: {a: "{% filter upper %}{{ workload.name }}{% endfilter %}"}')[1] == ()


def validated(task):
    text = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\nworkload: {name: a}\nworkflow:\n- step: s\n"
    text += f"  tool:\n    {task}\n"
    return text, compile_playbook(text, file="p.yaml", specs=specs()).diagnostics
