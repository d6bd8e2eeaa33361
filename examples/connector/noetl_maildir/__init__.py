"""Source and target `maildir`: the messages of a mail folder as rows."""

from noetl.tool import Field, RowTarget, SourceSpec, TargetSpec, error_info

FOLDER = {"path": Field("string", "The mail folder (Maildir format).", required=True, files=True)}
HEADERS = ("from", "to", "subject", "date")


async def read(call):
    """Yield the messages in batches."""
    import email.policy  # libraries are imported when a transfer runs
    import mailbox

    batch = []
    folder = mailbox.Maildir(call.host.resolve_path(call.fields["path"]), create=False)
    for key in sorted(folder.keys()):
        message = email.message_from_bytes(folder.get_bytes(key), policy=email.policy.default)
        text = message.get_body(("plain", "html"))  # of a message with attachments too
        headers = {name: message[name] and str(message[name]) for name in HEADERS}
        batch.append({"id": key, **headers, "text": text and text.get_content()})
        if len(batch) == call.batch_rows:
            yield batch
            batch = []
    yield batch


class MaildirTarget(RowTarget):
    """Adds one message per row; `abort` removes them again."""

    async def begin(self, schema):
        import mailbox

        self.folder = mailbox.Maildir(self.call.host.resolve_path(self.call.fields["path"]), create=self.call.create)
        self.added = []

    async def write(self, table):
        from email.message import EmailMessage

        for row in table.to_pylist():
            message = EmailMessage()
            message.set_content(row.pop("text", None) or "")
            for name, value in row.items():
                if value is not None:
                    message[name.capitalize()] = " ".join(str(value).splitlines())
            self.added.append(self.folder.add(message))

    async def abort(self):
        for key in getattr(self, "added", ()):
            self.folder.discard(key)


def explain(failure):
    """The error of a folder that cannot be used; other exceptions are defects."""
    return error_info("not_found", f"{failure}: no such mail folder") if "NoSuchMailbox" in repr(failure) else None


SOURCE = SourceSpec(kind="maildir", doc="Messages of a mail folder.", read=read, fields=FOLDER, explain=explain)
TARGET = TargetSpec(kind="maildir", doc="Adds messages to a mail folder.", open=MaildirTarget, fields=FOLDER,
                    place="path", modes=("append",), explain=explain)  # fmt: skip
