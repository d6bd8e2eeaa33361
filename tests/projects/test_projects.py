"""`noetl apply` and `noetl diff`: versions, files, resources, profiles, and mistakes in projects."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.projects.conftest import write

MAIN = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: main, path: {project}/main}}
workload: {{rate: 1, unit: EUR}}
workflow:
  - step: start
    tool: {{name: t, kind: python, script: {{uri: lib/price.py}}, input: {{rate: "{{{{ workload.rate }}}}", unit: "{{{{ workload.unit }}}}"}}}}
"""
SCRIPT = "result = f'{2 * rate} {unit}'\n"
SCHEDULE = """\
apiVersion: noetl.io/v2
kind: Schedule
metadata: {{name: {project}-nightly}}
spec: {{path: {project}/main, cron: "{cron}", overlap: skip}}
"""


@pytest.fixture
def project(folder, request):
    """A project of its own name, since all tests share the server."""
    name = "".join(letter for letter in request.node.name if letter.isalnum())[:40]
    write(
        folder,
        {
            "noetl.toml": f'[project]\nname = "{name}"\n[profile.prod]\nworkload = {{rate = 5}}\n',
            "main.yaml": MAIN.format(project=name),
            "lib/price.py": SCRIPT,
            "nightly.resource.yaml": SCHEDULE.format(project=name, cron="0 2 * * *"),
        },
    )
    return name


def test_apply_registers_playbooks_and_resources_once(there, project, folder):
    first = there("apply")
    assert first.code == 0, first.err
    assert f"new      playbook {project}/main version 1 (main.yaml, 1 file)" in first.out
    assert f"new      schedule {project}-nightly" in first.out
    assert "" not in first.err.splitlines()  # no line for a playbook or a resource without findings
    assert there("apply").out == ""
    assert there("diff").code == 0
    ran = there("execute", f"{project}/main", "--json")
    assert ran.json["output"]["data"] == "2 EUR"


def test_a_changed_file_is_a_new_version_and_old_executions_keep_theirs(there, project, folder):
    there("apply")
    old = there("execute", f"{project}/main", "--json").json
    write(folder, {"lib/price.py": "result = 'changed'\n"})
    shown = there("diff")
    assert shown.code == 1
    assert "~ lib/price.py" in shown.out
    assert there("apply").out == f"changed  playbook {project}/main version 2 (main.yaml, 1 file)\n"
    assert there("execute", f"{project}/main", "--json").json["output"]["data"] == "changed"
    assert there("execute", f"{project}/main@1", "--json").json["output"]["data"] == "2 EUR"
    assert there("rerun", old["execution_id"], "--json").json["output"]["data"] == "2 EUR"


def test_diff_shows_the_text_and_changes_nothing(there, project, folder):
    there("apply")
    write(folder, {"main.yaml": MAIN.format(project=project).replace("rate: 1", "rate: 3")})
    shown = there("diff")
    assert shown.code == 1
    assert "-workload: {rate: 1, unit: EUR}" in shown.out and "+workload: {rate: 3, unit: EUR}" in shown.out
    assert there("apply", "--dry-run").out == f"changed  playbook {project}/main version 2 (main.yaml, 1 file)\n"
    assert there("execute", f"{project}/main", "--json").json["output"]["data"] == "2 EUR"


def test_a_profile_gives_workload_values_and_credentials(there, project, folder, cluster, monkeypatch):
    write(
        folder,
        {
            "noetl.toml": f"[project]\nname = '{project}'\n[profile.prod]\nserver = '{cluster.url}'\nworkload = {{unit = 'USD'}}\n"
            "credentials = {shop = 'shop_prod'}\n",
            "main.yaml": MAIN.format(project=project).replace("workflow:", "keychain: [{name: shop, kind: credential}]\nworkflow:")
            + "      \n  - step: unused\n    tool: {name: n, kind: noop}\n",
            "login.yaml": f"""\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: login, path: {project}/login}}
keychain: [{{name: shop, kind: credential}}]
workflow:
  - step: start
    tool: {{name: t, kind: python, input: {{n: "{{{{ keychain.shop.password | length }}}}"}}, code: result = n}}
""",
        },
    )  # fmt: skip
    (folder / "main.yaml").write_text(MAIN.format(project=project))
    assert there("credential", "set", "shop_prod", "--data", '{"password": "12345"}').code == 0
    assert there("credential", "set", "shop", "--data", '{"password": "1234567890"}').code == 0
    monkeypatch.delenv("NOETL_SERVER_URL")
    applied = there("apply", "--profile", "prod")
    assert applied.code == 0, applied.err
    monkeypatch.setenv("NOETL_SERVER_URL", cluster.url)
    assert there("execute", f"{project}/main", "--json").json["output"]["data"] == "2 USD"
    assert there("execute", f"{project}/login", "--json").json["output"]["data"] == 5
    assert there("execute", "login.yaml", "--profile", "prod", "--json").json["output"]["data"] == 5
    assert there("execute", "login.yaml", "--json").json["output"]["data"] == 10
    monkeypatch.delenv("NOETL_SERVER_URL")
    assert there("run", "main.yaml", "--profile", "prod", "--json").json["output"]["data"] == "2 USD"
    unknown = there("apply", "--profile", "prd")
    assert unknown.code == 2
    assert "did you mean prod?" in unknown.err


def test_prune_deletes_resources_that_no_file_describes(there, project, folder):
    there("apply")
    (folder / "nightly.resource.yaml").unlink()
    assert f"{project}-nightly" not in there("apply").out
    assert there("apply", "--prune").out == f"deleted  schedule {project}-nightly\n"
    assert f"{project}-nightly" not in there("schedule", "list").out


def test_a_deleted_playbook_is_reported_and_its_resources_are_pruned(there, project, folder):
    write(folder, {"other.yaml": MAIN.format(project=project).replace(f"{project}/main", f"{project}/other")})
    there("apply")
    (folder / "main.yaml").unlink()
    (folder / "nightly.resource.yaml").unlink()
    applied = there("apply", "--prune")
    assert f"{project}/main is no longer in the project; its versions stay in the catalog" in applied.err
    assert applied.out == f"deleted  schedule {project}-nightly\n"


def test_a_changed_resource_is_updated(there, project, folder):
    there("apply")
    write(folder, {"nightly.resource.yaml": SCHEDULE.format(project=project, cron="30 3 * * *")})
    assert there("apply").out == f"changed  schedule {project}-nightly: cron: '0 2 * * *' -> '30 3 * * *'\n"
    (shown,) = [one for one in there("schedule", "list", "--json").json if one["name"] == f"{project}-nightly"]
    assert shown["cron"] == "30 3 * * *"


def test_limits_and_webhooks_are_resources(there, project, folder):
    assert there("credential", "set", f"{project}-hook", "--data", '{"secret": "s3cr3t-s3cr3t"}').code == 0
    write(
        folder,
        {
            "more.resource.yaml": f"""\
apiVersion: noetl.io/v2
kind: Limit
metadata: {{name: one-at-a-time}}
spec: {{subject: playbook, name: {project}/main, most: 1}}
---
apiVersion: noetl.io/v2
kind: Webhook
metadata: {{name: {project}-hook}}
spec: {{path: {project}/main, credential: {project}-hook}}
"""
        },
    )
    applied = there("apply")
    assert applied.code == 0, applied.err
    assert f"new      limit playbook {project}/main" in applied.out
    assert f"new      webhook {project}-hook" in applied.out
    assert there("apply").out == ""
    called = there("webhook", "call", f"{project}-hook", "--secret", "s3cr3t-s3cr3t")
    assert called.code == 0, called.err


def test_one_playbook_with_errors_changes_nothing(there, project, folder):
    write(folder, {"other.yaml": MAIN.format(project=project + "-x").replace("kind: python", "kind: pyton")})
    answer = there("apply")
    assert answer.code == 3
    assert "other.yaml" in answer.err and "nothing was registered" in answer.err
    assert there("catalog", "show", f"{project}/main").code != 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind: Schedul\n", 'bad.resource.yaml:2:7: error: unknown kind of resource "Schedul"'),
        ("kind: Schedule\nmetadata: {name: x}\nspec: {cron: '* * * * *'}\n", 'Schedule requires "path"'),
        ("kind: Schedule\nmetadata: {name: x}\nspec: {path: a, cron: '* * * * *', zone: UTC}\n", 'Schedule has no field "zone"'),
        ("kind: Schedule\nspec: {path: a, cron: '* * * * *'}\n", 'missing the required key "metadata"'),
        ("kind: [\n", "is not valid YAML"),
        ("kind: Schedule\nmetadata: {name: x}\nspec: {path: a, cron: daily at two}\n", "bad.resource.yaml:4:23: error"),
        ("kind: Schedule\nmetadata: {name: x}\nspec: {path: nosuch/playbook, cron: '* * * * *'}\n",
         "bad.resource.yaml: Schedule 'x': there is no playbook 'nosuch/playbook'"),
        ("kind: Webhook\nmetadata: {name: x}\nspec: {path: PROJECT/main, credential: nosuch}\n",
         "bad.resource.yaml: Webhook 'x': there is no credential 'nosuch'"),
        ("kind: Notification\nmetadata: {name: x}\nspec: {on: [failed], to: {kind: slack, credential: nosuch}}\n",
         "there is no credential 'nosuch'"),
        ("[" * 3000, "nested too deeply"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_resource_is_named(there, project, folder, text, message):
    text = text.replace("PROJECT", project)
    write(folder, {"bad.resource.yaml": f"apiVersion: noetl.io/v2\n{text}" if text.startswith("kind") else text})
    answer = there("apply")
    assert answer.code == 3
    assert message in answer.err
    assert "Traceback" not in answer.err
    assert there("catalog", "show", f"{project}/main").code != 0, "the project was applied in part"


def test_the_commit_is_recorded_with_the_version(there, project, folder, cluster):
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *words], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    assert f"commit {commit[:12]}" in there("apply").err
    _, stored = cluster.ask("GET", f"/api/catalog/{project}/main")
    assert stored["origin"] == {"project": project, "commit": commit}
    write(folder, {"lib/price.py": "result = 2\n"})
    there("apply")
    _, stored = cluster.ask("GET", f"/api/catalog/{project}/main")
    assert stored["origin"] == {"project": project, "commit": commit, "modified": True}
    assert commit[:12] in there("catalog", "show", f"{project}/main", "--json").json["commit"]


def test_secrets_do_not_travel(there, project, folder, cluster):
    write(
        folder,
        {
            "token.txt": "s3cret",
            "client.key": "-----BEGIN PRIVATE KEY-----",
            ".env": "NOETL_X=1",
            "main.yaml": MAIN.format(project=project).replace(
                "workflow:", "keychain: [{name: t, kind: file, path: token.txt}]\nworkflow:"
            )
            + "      \n".replace(" ", "")
            + "  - step: later\n    tool: {name: h, kind: http, url: https://a.example, cert: client.key, spec: {timeout: 1}}\n",
        },
    )
    answer = there("apply", "--json")
    assert answer.code == 0, answer.err
    (one,) = answer.json["playbooks"]
    assert one["files"] == ["lib/price.py", "main.yaml"]
    assert "client.key may be a secret" in answer.err


def test_files_outside_of_the_project_do_not_travel(there, project, folder, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "rates.py"
    outside.write_text("result = 1\n")
    (folder / "lib/link.py").symlink_to(outside)
    (folder / "lib/inside.py").symlink_to("price.py")
    (folder.parent / "shared.py").write_text("result = 1\n")
    tasks = "".join(
        f"      - {{name: {name}, kind: python, script: {{uri: {file}}}}}\n"
        for name, file in (("a", "lib/link.py"), ("b", "lib/inside.py"), ("c", "../shared.py"))
    )
    write(folder, {"main.yaml": MAIN.format(project=project) + f"  - step: later\n    tool:\n{tasks}"})
    answer = there("apply", "--json")
    assert answer.code == 0, answer.err
    (one,) = answer.json["playbooks"]
    assert one["files"] == ["lib/inside.py", "lib/price.py", "main.yaml"]
    assert "lib/link.py is a link to a file outside of the project" in answer.err
    assert "../shared.py is outside of the project and does not travel" in answer.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 3000, "bad.yaml:1:101: error: nested deeper"),
        ("a: &a [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
            f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 10)}]\n" for i in range(8)
        ), "aliases expanded"),
        ("- 1\n", "bad.yaml:1:1: error: a playbook must be a mapping"),
    ],
)  # fmt: skip
def test_a_file_with_errors_is_refused_by_its_name(there, folder, text, message):
    write(folder, {"bad.yaml": text})
    answer = there("execute", "bad.yaml")
    assert answer.code == 3
    assert message in answer.err


def test_outside_of_a_project(there, folder):
    answer = there("apply")
    assert answer.code == 2
    assert "there is no noetl.toml" in answer.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[project]\nnam = 'x'\n", "unknown key project.nam; did you mean name?"),
        ("[project]\ninclude = 'x'\n", "project.include must be a list"),
        ("[profile.prod]\nserver = 1\n", "profile.prod.server must be a URL"),
        ("[profile.prod]\nworkloads = {}\n", "unknown key workloads; did you mean workload?"),
        ("[project\n", "error: noetl.toml is not valid TOML"),
        ("[projekt]\nname = 'x'\n", "unknown table [projekt]; did you mean project?"),
        ("[profiles.prod]\n", "unknown table [profiles]; did you mean profile?"),
        (
            "[project]\ninclude = ['../*.py']\n",
            "project.include must be a list of patterns of files inside the project",
        ),
    ],
)
def test_a_mistake_in_the_project_file_is_named(there, project, folder, text, message):
    (folder / "noetl.toml").write_text(text)
    answer = there("apply")
    assert answer.code == 2
    assert message in answer.err


def test_changes_are_json(there, project):
    document = there("apply", "--dry-run", "--json").json
    assert document["applied"] is False
    assert [(one["action"], one["path"]) for one in document["playbooks"]] == [("create", f"{project}/main")]
    assert json.dumps(document)


def test_apply_works_on_the_local_catalog(there, project, monkeypatch):
    monkeypatch.delenv("NOETL_SERVER_URL")
    assert there("apply").code == 0
    assert there("run", f"{project}/main", "--json").json["output"]["data"] == "2 EUR"


def test_the_page_of_projects_lists_every_kind_of_resource_with_its_fields():
    from noetl.cli.projects import resource_kinds  # noqa: F401 - registers the kinds
    from noetl.cli.projects.resources import KINDS

    text = (
        (Path(__file__).parents[2] / "docs" / "howto" / "projects.md")
        .read_text(encoding="utf-8")
        .split("## Resource files")[1]
    )
    common = set(re.findall(r"`(\w+)`", next(line for line in text.splitlines() if "also have `path`" in line)))
    for name, kind in KINDS.items():
        row = next((line for line in text.splitlines() if line.startswith(f"| `{name}` |")), "")
        assert set(kind.fields) <= set(re.findall(r"`(\w+)`", row)) | common, name
