from noetl.client import Client as Client
from noetl.control.views import RunResult as RunResult
from noetl.errors import InvalidPlaybook as InvalidPlaybook
from noetl.errors import NoetlError as NoetlError
from noetl.local import open_local as open_local
from noetl.local import run as run
from noetl.local import run_async as run_async
from noetl.local import validate as validate

__version__: str
__all__: list[str]
