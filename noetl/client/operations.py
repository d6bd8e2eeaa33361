"""The operations of the HTTP API, each written once for the blocking and the asynchronous client.

An operation is a generator: it yields requests, receives their responses and returns a typed result. A client runs it
over its own connection. Lists are `Pages`, which a client iterates.
"""

from __future__ import annotations

from noetl.client.definition_operations import DefinitionOperations
from noetl.client.execution_operations import ExecutionOperations
from noetl.client.trigger_operations import TriggerOperations


class Operations(ExecutionOperations, DefinitionOperations, TriggerOperations):
    """The operations; `Client` and `AsyncClient` have methods of the same names and parameters."""
