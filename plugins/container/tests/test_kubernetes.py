"""Kind `container` as a Kubernetes Job: the real client against a local server with the API (`cluster.py`)."""

from __future__ import annotations

import asyncio
import base64
import importlib.util
import json
from pathlib import Path

import pytest

from noetl.testing import ToolHost, tool_call

_spec = importlib.util.spec_from_file_location("noetl_container_cluster", Path(__file__).parent / "cluster.py")
cluster = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(cluster)


def shell(code: str, *arguments: str) -> list[str]:
    return ["/bin/sh", "-c", code, "sh", *arguments]


class Scenario:
    """Runs calls against a cluster; the cluster is empty at the end."""

    def __init__(self, folder: Path) -> None:
        self.cluster = cluster.Cluster(folder)

    def call(self, *words, host=None, spec=None, timeout=60.0, **given):
        credentials = {"k8s": {"server": self.cluster.url, "token": cluster.TOKEN, "namespace": "jobs"}}
        host = host or ToolHost()
        host.credentials.setdefault("k8s", credentials["k8s"])
        given = {"runtime": "kubernetes", "image": "tiny:1", "cluster": "k8s", "command": list(words) or None, **given}
        return tool_call("container", given, host=host, spec=spec, timeout=timeout)

    def run(self, *words, **options):
        async def whole():
            async with self.cluster.serving():
                from noetl_container.task import run

                return await run(self.call(*words, **options))

        outcome = asyncio.run(whole())
        assert (self.cluster.jobs, self.cluster.pods, self.cluster.secrets) == ({}, {}, {})
        return outcome


@pytest.fixture
def scenario(tmp_path):
    return Scenario(tmp_path)


def test_output_status_and_log_lines(scenario):
    host = ToolHost()
    outcome = scenario.run(*shell("echo hello $1; sleep 0.2; echo bad >&2", "you"), host=host)
    assert outcome.status == "ok", outcome
    assert outcome.data == {"returncode": 0, "stdout": "hello you\nbad\n", "stderr": "", "files": {}}
    assert host.lines == [("stdout", "hello you"), ("stdout", "bad")]
    assert outcome.helpers["container"]["runtime"] == "kubernetes"


def test_variables_and_files_are_in_a_secret_that_belongs_to_the_job(scenario):
    outcome = scenario.run(
        *shell("printf '%s|' \"$TOKEN\" \"$LINES\"; cat /work/given.json"),
        env={"TOKEN": "sesame", "LINES": "a\nb"}, files={"/work/given.json": {"a": 1}},
    )  # fmt: skip
    assert outcome.data["stdout"] == 'sesame|a\nb|{"a":1}', outcome
    (job,) = scenario.cluster.created
    assert "sesame" not in json.dumps(job)
    (secret,) = scenario.cluster.secrets_created
    assert secret["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]


def test_files_out(scenario):
    host = ToolHost()
    code = "echo a > /out/a; mkdir /out/deep; echo b > /out/deep/b; head -c 5000 /dev/zero > /out/large"
    outcome = scenario.run(
        *shell(code), outputs=["/out/a", "/out/deep", "/out/large"], spec={"inline_bytes": 1000}, host=host
    )
    assert outcome.status == "ok", outcome
    large = outcome.data["files"].pop("/out/large")
    assert outcome.data["files"] == {"/out/a": "a\n", "/out/deep/b": "b\n"}
    assert large.meta.bytes == 5000
    outcome = scenario.run(*shell("true"), outputs=["/out/none"])
    assert (outcome.error.kind, outcome.error.message) == (
        "not_found",
        "`outputs`: the container has not written /out/none",
    )


def test_an_exit_status_is_an_error_with_the_output(scenario):
    outcome = scenario.run(*shell("echo no such day; exit 7"))
    assert (outcome.error.kind, outcome.data["returncode"]) == ("shell", 7)
    assert outcome.error.message == "the container exited with status 7: no such day"
    assert scenario.run(*shell("exit 7"), outputs=["/out/x"]).data["returncode"] == 7


def test_the_manifest_has_limits_user_and_no_token_of_a_service_account(scenario):
    scenario.run(
        "/bin/true", memory="512m", cpu=0.5, user="1000:100", workdir="/tmp", pull="always", timeout=30.2,
        auth={"username": "ann", "password": "pw"}, image="registry.example:5000/team/tiny:1",
    )  # fmt: skip
    (job,) = scenario.cluster.created
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    assert (spec["backoffLimit"], spec["activeDeadlineSeconds"], pod["restartPolicy"]) == (0, 31, "Never")
    assert pod["automountServiceAccountToken"] is False
    (task,) = pod["containers"]
    assert task["resources"] == {"limits": {"memory": str(512 << 20), "cpu": "500m"}}
    assert task["securityContext"] == {"allowPrivilegeEscalation": False, "runAsUser": 1000, "runAsGroup": 100}
    assert (task["imagePullPolicy"], task["workingDir"]) == ("Always", "/tmp")
    pull = next(each for each in scenario.cluster.secrets_created if each["type"] == "kubernetes.io/dockerconfigjson")
    config = json.loads(base64.b64decode(pull["data"][".dockerconfigjson"]))
    assert list(config["auths"]) == ["registry.example:5000"]
    assert pod["imagePullSecrets"] == [{"name": pull["metadata"]["name"]}]


def test_a_log_whose_connection_breaks_is_continued(scenario):
    scenario.cluster.break_logs = 2
    outcome = scenario.run(*shell("for n in 1 2 3 4 5 6; do echo $n; sleep 0.3; done"))
    assert outcome.data["stdout"] == "1\n2\n3\n4\n5\n6\n"


def test_a_timeout_deletes_the_job(scenario):
    outcome = scenario.run("/bin/sleep", "600", timeout=1.0)
    assert outcome.error.kind == "timeout"


def test_a_cancellation_deletes_the_job(scenario):
    async def whole():
        from noetl_container.task import run

        async with scenario.cluster.serving():
            task = asyncio.ensure_future(run(scenario.call("/bin/sleep", "600")))
            await asyncio.wait_for(scenario.cluster.started.wait(), 60)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (scenario.cluster.jobs, scenario.cluster.pods) == ({}, {})

    asyncio.run(whole())


def test_an_attempt_replaces_the_job_of_the_previous_one_which_does_not_delete_the_new_one(scenario):
    async def whole():
        from noetl_container.task import run

        async with scenario.cluster.serving():
            old = asyncio.ensure_future(run(scenario.call("/bin/sleep", "600")))
            await asyncio.wait_for(scenario.cluster.started.wait(), 60)
            new = await run(scenario.call(*shell("sleep 1; echo new"), attempt=2))
            return new, await old

    new, old = asyncio.run(whole())
    assert new.data["stdout"] == "new\n"
    assert old.error.kind == "worker.lost"
    assert len(scenario.cluster.created) == 2


@pytest.mark.parametrize(
    ("given", "kind", "said"),
    [
        ({"network": "none"}, "schema", "network policies"),
        ({"user": "ann"}, "schema", "number"),
        ({"cluster": "nothing"}, "auth", "nothing"),
        ({"cluster": {"token": "x"}}, "schema", "`server`"),
        ({"cluster": {"server": "http://127.0.0.1:1"}}, "connection", "127.0.0.1"),
        ({"cluster": {"kubeconfig": "clusters: ["}}, "schema", "kubeconfig"),
        ({"cluster": {"kubeconfig": {"users": [{"user": {"exec": {"command": "id"}}}]}}}, "schema", "exec"),
        ({"files": {"/a": "x" * 1_100_000}}, "limit", "1 MB"),
    ],
)
def test_an_error_says_what_is_wrong(scenario, given, kind, said):
    outcome = scenario.run("/bin/true", **given)
    assert outcome.error.kind == kind, outcome.error
    assert said in outcome.error.message


def test_a_wrong_token_is_an_auth_error(scenario):
    host = ToolHost(credentials={"k8s": {"server": "", "token": "wrong"}})

    async def whole():
        from noetl_container.task import run

        async with scenario.cluster.serving():
            host.credentials["k8s"]["server"] = scenario.cluster.url
            return await run(scenario.call("/bin/true", host=host))

    assert asyncio.run(whole()).error.kind == "auth"


def test_an_image_that_cannot_be_pulled_is_an_error(scenario):
    scenario.cluster.waiting = {"reason": "ImagePullBackOff", "message": "manifest unknown"}
    outcome = scenario.run("/bin/true")
    assert outcome.error.kind == "not_found"
    assert "ImagePullBackOff" in outcome.error.message


def test_a_kubeconfig_of_a_credential(scenario):
    async def whole():
        from noetl_container.task import run

        async with scenario.cluster.serving():
            kubeconfig = {
                "current-context": "main",
                "contexts": [{"name": "main", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
                "clusters": [{"name": "c", "cluster": {"server": scenario.cluster.url}}],
                "users": [{"name": "u", "user": {"token": cluster.TOKEN}}],
            }
            return await run(scenario.call(*shell("echo yes"), cluster={"kubeconfig": json.dumps(kubeconfig)}))

    assert asyncio.run(whole()).data["stdout"] == "yes\n"
    assert "POST /apis/batch/v1/namespaces/team/jobs" in scenario.cluster.requests
