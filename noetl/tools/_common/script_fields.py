"""The members of `script:`, shared by the kinds that load code from a file; cheap to import."""

from __future__ import annotations

from noetl.core.model.tool import Field, Members
from noetl.tools._common.http_fields import METHOD

SOURCE_TYPES = ("file", "http", "inline", "gcs", "s3")

SCRIPT_MEMBERS = Members(
    fields={
        "uri": Field("string", "The file, URL or object with the code."),
        "source": Field(
            "any",
            "Where it is: `{type: file|http|inline|gcs|s3, ...}`.",
            members=Members(
                fields={
                    "type": Field(
                        "string",
                        choices=SOURCE_TYPES,
                        also=("https", "gs"),
                        aliases=("kind",),
                        doc="Where the code is.",
                    ),
                    "method": METHOD,
                },
                open=True,
            ),
        ),
        "auth": Field("any", "The credential for the source.", aliases=("credential",), accepts=("string", "mapping")),
        "code": Field("code", "The text itself, of a source of type `inline`.", aliases=("content", "text", "script")),
    },
    requires=(("uri", "source", "code"),),
)
