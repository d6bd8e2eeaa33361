"""The Helm chart: linted and rendered by helm, every object checked against the schema of its Kubernetes version."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from noetl.observability import metrics
from noetl.settings import OTHER_VARIABLES, TABLE

CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "noetl"
HELM = Path(sys.executable).parent / "helm"
SETTINGS = {setting.variable for setting in TABLE} | OTHER_VARIABLES
EVERYTHING = {
    "results": "s3://bucket/results",
    "nats": {"url": "nats://nats:4222"},
    "imagePullSecrets": [{"name": "registry"}],
    "server": {"tlsSecret": "tls", "trustedProxies": ["10.0.0.0/8"], "hosts": ["noetl.example"], "env": {"NOETL_RETENTION": "30d"}},
    "ingress": {"enabled": True, "className": "nginx", "tlsSecret": "ingress-tls", "annotations": {"a": "b"}},
    "networkPolicy": {"from": [{"namespaceSelector": {"matchLabels": {"name": "ingress"}}}]},
    "workers": {
        "default": {"autoscaling": {"enabled": True}},
        "gpu": {
            "replicas": 1, "slots": 2, "labels": {"gpu": "true"}, "env": {"NOETL_PRIVATE_NETWORKS": "10.0.0.0/8"}, "resources": {},
            "nodeSelector": {"gpu": "yes"}, "tolerations": [{"key": "gpu", "operator": "Exists"}], "autoscaling": {"enabled": False},
        },
    },
}  # fmt: skip


def helm(*words: str, values: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    command = [str(HELM), *words, "--values", "-"]
    return subprocess.run(command, input=json.dumps(values), capture_output=True, text=True, timeout=60)


def rendered(values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    answer = helm("template", "shop", str(CHART), "--namespace", "flows", values=values)
    assert answer.returncode == 0, answer.stderr
    documents = [one for one in yaml.safe_load_all(answer.stdout) if one]
    return {f"{one['kind']}/{one['metadata']['name']}": one for one in documents}


@pytest.fixture(scope="module", params=[{"results": "s3://b/r"}, EVERYTHING], ids=["defaults", "everything"])
def objects(request: pytest.FixtureRequest) -> dict[str, dict[str, Any]]:
    return rendered(request.param)


def pods(objects: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    return [one["spec"]["template"]["spec"] for one in objects.values() if one["kind"] in ("Deployment", "Job")]


def test_the_chart_passes_the_linter():
    answer = helm("lint", "--strict", str(CHART), values=EVERYTHING)
    assert answer.returncode == 0, answer.stdout


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"servr": {"replicas": 3}}, "servr"),
        ({"server": {"replica": 3}}, "replica"),
        ({"workers": {"default": {"slot": 3}}}, "slot"),
        ({"workers": {"default": {"autoscaling": {"maximum": 3}}}}, "maximum"),
        ({"networkPolicy": {"enable": False}}, "enable"),
    ],
)
def test_a_misspelt_value_is_refused(values: dict[str, Any], name: str):
    answer = helm("template", "shop", str(CHART), values={"results": "s3://b/r", **values})
    assert answer.returncode != 0
    assert name in answer.stderr and "not allowed" in answer.stderr


def test_a_further_pool_names_only_what_differs():
    found = rendered({"results": "s3://b/r", "workers": {"gpu": {"slots": 2, "autoscaling": {"enabled": True}}}})
    pod = found["Deployment/shop-noetl-worker-gpu"]["spec"]["template"]["spec"]["containers"][0]
    assert "--slots=2" in pod["args"] and pod["resources"]["limits"] == {"memory": "2Gi"}
    assert found["HorizontalPodAutoscaler/shop-noetl-worker-gpu"]["spec"]["maxReplicas"] == 10
    assert "Deployment/shop-noetl-worker-default" in found


def test_every_object_fits_its_schema(objects: dict[str, dict[str, Any]]):
    for one in objects.values():
        kubernetes_validate.validate(one, "1.30", strict=True)


def test_pods_are_not_root_and_change_no_file_system(objects: dict[str, dict[str, Any]]):
    for pod in pods(objects):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["automountServiceAccountToken"] is False
        for container in pod["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert {mount["mountPath"] for mount in container["volumeMounts"]} >= {"/var/lib/noetl", "/tmp"}


def test_variables_are_settings(objects: dict[str, dict[str, Any]]):
    for pod in pods(objects):
        for container in pod["containers"]:
            names = [variable["name"] for variable in container["env"]]
            assert set(names) <= SETTINGS
            assert len(names) == len(set(names))


def test_workers_know_neither_the_store_nor_the_key(objects: dict[str, dict[str, Any]]):
    for name, one in objects.items():
        if "-worker-" in name and one["kind"] == "Deployment":
            (container,) = one["spec"]["template"]["spec"]["containers"]
            names = {variable["name"] for variable in container["env"]}
            assert not names & {"NOETL_STORE", "NOETL_SECRET_KEY"}
            assert {"NOETL_SERVER_URL", "NOETL_TOKEN", "NOETL_RESULTS"} <= names
            assert not [volume for volume in one["spec"]["template"]["spec"]["volumes"] if "secret" in volume]


def test_commands_exist(objects: dict[str, dict[str, Any]]):
    from noetl.cli import app

    for pod in pods(objects):
        for container in pod["containers"]:
            with app.noetl.make_context("noetl", container["args"], resilient_parsing=True) as ctx:
                name, verb, rest = app.noetl.resolve_command(ctx, container["args"])
            verb.make_context(name, rest)


def test_the_tables_are_migrated_before_servers_start(objects: dict[str, dict[str, Any]]):
    job = objects["Job/shop-noetl-migrate"]
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    assert job["spec"]["template"]["spec"]["containers"][0]["args"] == ["upgrade"]


def test_probes_send_a_host_that_the_server_accepts(objects: dict[str, dict[str, Any]]):
    (server,) = objects["Deployment/shop-noetl-server"]["spec"]["template"]["spec"]["containers"]
    for probe, path in (("livenessProbe", "/healthz"), ("startupProbe", "/healthz"), ("readinessProbe", "/readyz")):
        request = server[probe]["httpGet"]
        assert request["path"] == path
        assert request["httpHeaders"] == [{"name": "Host", "value": "127.0.0.1"}]


def test_a_pool_scales_with_its_queue():
    scaler = rendered(EVERYTHING)["HorizontalPodAutoscaler/shop-noetl-worker-default"]
    (metric,) = scaler["spec"]["metrics"]
    name = metric["external"]["metric"]["name"]
    assert metrics.TABLE[name].labels == ("pool",)
    assert metric["external"]["metric"]["selector"]["matchLabels"] == {"pool": "default"}
    assert "replicas" not in rendered(EVERYTHING)["Deployment/shop-noetl-worker-default"]["spec"]
    assert "HorizontalPodAutoscaler/shop-noetl-worker-gpu" not in rendered(EVERYTHING)


def test_tls_and_proxies_are_settings_of_the_server():
    (server,) = rendered(EVERYTHING)["Deployment/shop-noetl-server"]["spec"]["template"]["spec"]["containers"]
    found = {variable["name"]: variable.get("value") for variable in server["env"]}
    assert found["NOETL_SERVER_TLS_CERT"] == "/etc/noetl/tls/tls.crt"
    assert found["NOETL_SERVER_TRUSTED_PROXIES"] == "10.0.0.0/8"
    assert (
        found["NOETL_SERVER_HOSTS"] == "shop-noetl-server,shop-noetl-server.flows.svc,noetl.example,noetl.example.com"
    )
    assert server["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"


def test_a_missing_result_store_is_named():
    answer = helm("template", "shop", str(CHART), values={})
    assert answer.returncode != 0
    assert "set `results` to a result store" in answer.stderr
