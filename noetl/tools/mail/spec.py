"""Kind `mail`: messages over SMTP."""

from __future__ import annotations

from msgspec.structs import replace

from noetl.core.model.outcome import Outcome
from noetl.core.model.tool import Field, Members, ToolCall, ToolSpec, count, named_input

MAX_BYTES = 25 << 20
ADDRESS = r".*[^\s@]@[^\s@].*"


_CONTENT = ("ref", "data", "path")
_ATTACHMENT = Members(dict.fromkeys(_CONTENT, Field()), requires=(_CONTENT,), open=True)


def _addresses(doc: str, *, required: bool = False) -> Field:
    """One address, or a list of them."""
    return Field("any", doc, required=required, pattern=ADDRESS, each=Field("string", doc, pattern=ADDRESS))


SPEC = ToolSpec(
    kind="mail",
    aliases=("email", "smtp"),
    doc="Sends a mail over SMTP. The credential has `host`, `port`, `username`, `password`, `from` and `tls` (`tls`, "
    "`starttls` or `none`; default by port: 465 tls, 587 starttls, others none, and starttls whenever there is a "
    "password). Attachments are stored results, data, or files. Repeated attempts of a task have the same Message-ID. "
    "`output.data` has `message_id`, `accepted` and `refused` recipients.",
    fields={
        "to": _addresses("Recipient, or a list of them: `name@host`.", required=True),
        "subject": Field("string", "Subject line.", required=True),
        "text": Field("string", "The message as plain text.", aliases=("body", "message")),
        "html": Field("string", "The message as HTML, beside the plain text."),
        "from": Field("string", "Sender, `name@host`. Default: `from` of the credential.", aliases=("sender",),
                      pattern=ADDRESS),
        "cc": _addresses("Recipients of a copy."),
        "bcc": _addresses("Recipients of a copy that others do not see."),
        "reply_to": Field("string", "Address for replies: `name@host`.", pattern=ADDRESS),
        "headers": Field("mapping", "Further headers."),
        "attachments": Field("list", "Files: `{name, ref}` a stored result, `{name, data, format?}` data, or "
                             "`{path, name?}` a file; each with `content_type?`.", files="members",
                             each=Field("mapping", "One of `ref`, `data` and `path`.", members=_ATTACHMENT)),
        "auth": Field("any", "The mail server: a credential's name, or a mapping of fields.", aliases=("credential",),
                      accepts=("string", "mapping")),
    },
    spec_keys={
        "timeout": "`total` seconds (30).",
        "max_bytes": "Largest sum of all attachments (25 MiB).",
    },
    spec_fields={"max_bytes": count()},
    example="- name: report\n  kind: mail\n  auth: smtp\n  to: [ops@example.com]\n"
    '  subject: "Orders of {{ workload.day }}"\n  text: "{{ load.data.count }} rows are loaded."\n'
    "  attachments:\n    - {name: orders.csv, ref: \"{{ export.ref }}\"}\n",
)  # fmt: skip


async def run(call: ToolCall) -> Outcome:
    """Send one message."""
    from noetl.tools.mail import task

    return await task.run(replace(call, input=named_input(SPEC, call.input)))
