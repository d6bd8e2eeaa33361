"""A folder of the package stays small enough to be read at a glance."""

from pathlib import Path

import noetl

MAX_MODULES = 20


def test_no_folder_has_more_than_twenty_modules():
    root = Path(noetl.__file__).parent
    folders = [root, *(folder for folder in root.rglob("*") if folder.is_dir() and folder.name != "__pycache__")]
    counts = {str(folder.relative_to(root)): len(list(folder.glob("*.py"))) for folder in folders}
    # `__init__.py` is not counted
    assert {name: count - 1 for name, count in counts.items() if count - 1 > MAX_MODULES} == {}
