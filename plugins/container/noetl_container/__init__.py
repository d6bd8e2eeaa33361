"""Kind `container`: runs a container image with podman or docker, or as a Kubernetes Job."""

from __future__ import annotations

from noetl.tool import Field, Members, ToolSpec, auth_field, count, lazy

RUNTIMES = ("auto", "podman", "docker", "kubernetes")
PULL = ("missing", "always", "never")
LIMITS = Members(
    {
        "memory": Field(
            "any",
            "The largest memory: `512m`, `2g`, `512Mi`, or a number of bytes.",
            accepts=("integer", "string"),
            least=1,
            pattern=r"\d+(\.\d+)? ?([kmgt]i?)?b?",
        ),
        "cpu": Field(
            "any",
            "The largest number of CPUs: `0.5`, `2`, `500m`.",
            accepts=("number", "string"),
            least=0.001,
            pattern=r"\d+(\.\d+)?m?",
        ),
    },
)

SPEC = ToolSpec(
    kind="container",
    doc="Runs a container image to its end, with podman, docker or as a Kubernetes Job. `output.data` has "
    "`returncode`, `stdout`, `stderr` and `files` (the contents of `outputs` by path). The container is removed at the "
    "end, also after a timeout or a cancellation.",
    fields={
        "image": Field("string", "The image.", required=True),
        "command": Field("any", "The program and its first arguments, instead of the entry point of the image: a list, "
                         "or the name of a program.", accepts=("string", "list")),
        "args": Field("list", "Arguments of the entry point or of `command`.", aliases=("arguments",)),
        "env": Field("any", "Environment variables: a mapping, or a list of `{name, value}`. Mappings and lists are "
                     "passed as JSON.", accepts=("mapping", "list")),
        "files": Field("mapping", "Files that are written before the start, by path: text, a reference, or data that "
                       "is written as JSON. A relative path is below `workdir`."),
        "outputs": Field("list", "Files that are read after the end, by path; a folder stands for all files in it. "
                         "Files larger than `spec.inline_bytes` are stored, and their value is a reference."),
        "workdir": Field("string", "The working folder, an absolute path."),
        "user": Field("any", "The user: a name or number, `1000:1000` with a group.", accepts=("string", "integer")),
        "network": Field("string", "`none`: without network; `default`: the default network of the engine; or the "
                         "name of a network. The networks of the host and of other containers are refused.",
                         default="default"),
        "pull": Field("string", "When the image is pulled.", choices=PULL, default="missing",
                      aliases=("image_pull_policy",), also=("IfNotPresent", "Always", "Never")),
        "runtime": Field("string", "What runs it. `auto`: podman or docker if one of them is installed, otherwise "
                         "Kubernetes.", choices=RUNTIMES, default="auto"),
        "memory": LIMITS.fields["memory"],
        "cpu": LIMITS.fields["cpu"],
        "resources": Field("mapping", "`limits: {memory, cpu}`, as in Kubernetes.",
                           members=Members({
                               "limits": Field("mapping", "The limits.", members=LIMITS),
                               "requests": Field("mapping", "What Kubernetes reserves.", members=LIMITS),
                           })),
        "auth": auth_field("The registry: a credential with `username`, `password` and, if it is not part of `image`, "
                           "`registry`.", required=False),
        "cluster": Field("any", "The Kubernetes cluster: a credential with `server`, `token`, `ca` and `namespace`, or "
                         "with `kubeconfig`. Default: that of the worker's pod, else the worker's kubeconfig.",
                         accepts=("string", "mapping")),
        "namespace": Field("string", "The namespace of the Job. Default: that of the cluster's credential or of the "
                           "worker's pod, else `default`."),
        "service_account": Field("string", "The service account of the Job. Default: none, and no token is mounted."),
        "timeout_seconds": Field("number", "The same as `spec.timeout`.", least=0),
        "backoff_limit": Field("integer", "Accepted and not used: a failed container is repeated by the rules of the "
                               "task.", least=0),
    },
    spec_keys={
        "timeout": "`total` seconds, which include pulling the image; then the container is stopped.",
        "ok_codes": "Exit codes other than 0 that are not errors.",
        "kill_grace": "Seconds between the request to end and the kill.",
        "max_output_bytes": "Largest `stdout` and `stderr`; the rest is only in the task log.",
        "inline_bytes": "Largest file of `outputs` that is returned as text.",
        "helper_image": "The image with `sh`, `tar` and `base64` that reads `outputs` on Kubernetes.",
    },
    spec_fields={
        "kill_grace": Field("number", least=0),
        "max_output_bytes": count(least=0),
        "inline_bytes": count(least=0),
        "ok_codes": Field("any", accepts=("integer", "list"), least=0, most=255, each=count(least=0, most=255)),
        "helper_image": Field("string"),
    },
    helpers={"container": {"returncode": None, "runtime": None, "image": None, "oom": None}},
    example='kind: container\nimage: python:3.12-slim\ncommand: [python, /work/report.py]\nargs: ["{{ ctx.day }}"]\n'
    'env: {TOKEN: "{{ keychain.api.token }}"}\nfiles: {/work/orders.json: "{{ orders.data }}"}\n'
    "outputs: [/work/report.csv]\nmemory: 512m\nspec: {timeout: 300}\n",
)  # fmt: skip

run = lazy("noetl_container.task:run")
