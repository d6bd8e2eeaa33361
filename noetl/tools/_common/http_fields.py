"""Fields of an HTTP request, shared by the kinds that send one; cheap to import."""

from __future__ import annotations

from noetl.core.model.tool import Field, Members

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "QUERY")
# Of WebDAV and of caches.
_OTHER_METHODS = ("PROPFIND", "PROPPATCH", "MKCOL", "COPY", "MOVE", "LOCK", "UNLOCK", "REPORT", "SEARCH", "PURGE",
                  "LINK", "UNLINK", "BAN", "LIST")  # fmt: skip
METHOD = Field(
    "string", "The HTTP method. Default: GET, or POST if there is a body.", choices=METHODS, also=_OTHER_METHODS
)
# Types of stored credentials: the fields decide how the request authenticates.
_CREDENTIAL_TYPES = ("credential", "google_oauth", "google_service_account", "service_account", "gcp", "http")
AUTH_KINDS = {
    "basic": "basic", "http_basic": "basic", "basic_auth": "basic", "userpass": "basic",
    "bearer": "bearer", "token": "bearer", "bearer_token": "bearer", "jwt": "bearer",
    "api_key": "api_key", "apikey": "api_key", "api-key": "api_key", "header": "api_key",
    "oauth2": "oauth2", "oauth": "oauth2", "oauth2_client_credentials": "oauth2", "client_credentials": "oauth2",
    "headers": "headers",
}  # fmt: skip

_BODIES = ("json", "body", "payload", "body_base64", "body_file", "body_ref")
# A request has one body; fields of a form may be sent beside files.
ONE_BODY = ((*_BODIES, "form"), (*_BODIES, "multipart"))

REQUEST_FIELDS = {
    "url": Field(
        "string", "The URL; http or https.", required=True, aliases=("endpoint", "uri"), schemes=("http", "https")
    ),
    "method": METHOD,
    "params": Field(
        "any",
        "Query parameters: a mapping (lists are repeated, nulls are omitted).",
        aliases=("query",),
        accepts=("mapping", "list", "string"),
    ),
    "headers": Field("mapping", "Request headers."),
    "json": Field("any", "Body, sent as JSON."),
    "form": Field("any", "Body, sent as a URL-encoded form."),
    "multipart": Field(
        "mapping",
        "Body, sent as multipart/form-data; a field that is a mapping is a file: "
        "`{filename, content|base64|path, content_type}`.",
        aliases=("files",),
    ),
    "body": Field(
        "any", "Body: a string is sent as is, a mapping or list as JSON (or according to the Content-Type header)."
    ),
    "data": Field("any", "`{query, body}`, or the body itself."),
    "payload": Field("any", "The body (older name)."),
    "body_base64": Field("string", "Body: bytes, as a base64 string.", pattern=r"[a-z0-9+/=_ -]*"),
    "body_file": Field("string", "Body: a file, streamed.", files=True),
    "body_ref": Field("any", "Body: a stored payload (`output.ref` of another task), streamed."),
    "auth": Field(
        "any",
        "The name of a keychain entry or credential, or `{type: basic|bearer|api_key|oauth2|headers, ...}`.",
        aliases=("credential",),
        accepts=("string", "mapping"),
        members=Members(
            fields={
                "type": Field(
                    "string",
                    "How the request authenticates.",
                    choices=tuple(dict.fromkeys(AUTH_KINDS.values())),
                    also=(*AUTH_KINDS, *_CREDENTIAL_TYPES),
                    aliases=("auth_type", "scheme"),
                )
            },
            open=True,
        ),
    ),
    "follow_redirects": Field("boolean", "`false`: do not follow redirects.", aliases=("allow_redirects",)),
    "proxy": Field("string", "URL of an HTTP proxy."),
    "verify": Field("boolean", "`false`: do not verify the TLS certificate.", aliases=("verify_ssl",), default=True),
    "ca": Field("string", "CA certificates to trust instead of the system's: a file or PEM text."),
    "cert": Field("string", "Client certificate: a file or PEM text (can include the key)."),
    "key": Field("string", "Key of the client certificate: a file or PEM text."),
    "key_password": Field("string", "Password of the key."),
}
