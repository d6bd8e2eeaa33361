from noetl.api import run as run
from noetl.api import run_async as run_async
from noetl.client import AsyncClient as AsyncClient
from noetl.client import Client as Client
from noetl.embedded import open_local as open_local
from noetl.embedded import validate as validate
from noetl.errors import InvalidPlaybook as InvalidPlaybook
from noetl.errors import NoetlError as NoetlError
from noetl.server.read_models.summaries import RunResult as RunResult

__version__: str
__all__: list[str]
