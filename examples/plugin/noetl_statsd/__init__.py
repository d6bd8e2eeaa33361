"""Tool kind `statsd`: sends one metric to a StatsD server."""

from noetl.tool import Field, Outcome, ToolCall, ToolSpec, auth_fields, error, ok, per_loop

TYPES = {"counter": "c", "gauge": "g", "timer": "ms"}

SPEC = ToolSpec(
    kind="statsd",
    doc="Sends a metric to a StatsD server.",
    fields={
        "auth": Field("any", "The server: a credential with `host` and `port`, or a mapping of them.", required=True),
        "metric": Field("string", "Name of the metric.", required=True),
        "value": Field("number", "Value of the metric.", default=1),
        "type": Field("string", "Type of the metric.", choices=tuple(TYPES), default="counter"),
    },
    helpers={"statsd": {"bytes": None}},
    example="kind: statsd\nauth: metrics\nmetric: orders.imported\nvalue: 12\n",
)


async def run(call: ToolCall) -> Outcome:
    """Send the metric."""
    import socket  # a driver is imported here, so that importing the plug-in stays cheap

    server = await auth_fields(call.input["auth"], call.host)
    address = server.get("host", "127.0.0.1"), int(server.get("port", 8125))
    if not call.host.allows_address(address[0]):
        return error("auth", f"network policy: connections to {address[0]} are not allowed")
    line = f"{call.input['metric']}:{call.input.get('value', 1)}|{TYPES[call.input.get('type', 'counter')]}"
    sender = per_loop("noetl-statsd", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    try:
        sent = sender.sendto(line.encode(), address)
    except OSError as problem:
        return error("connection", f"{address[0]}:{address[1]}: {problem.strerror or problem}")
    return ok({"sent": line}, statsd={"bytes": sent})
