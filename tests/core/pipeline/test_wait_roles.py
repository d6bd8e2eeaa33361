"""The roles that may answer a `wait` task."""

from __future__ import annotations

import pytest

from noetl.core.pipeline.waits import _roles


@pytest.mark.parametrize(
    ("given", "roles"),
    [(None, ("operator",)), ("admin", ("admin",)), (["viewer", "author"], ("viewer", "author"))],
)
def test_roles_are_a_name_or_a_list(given, roles):
    assert _roles(given) == roles


@pytest.mark.parametrize("given", [[], "auditor", ["operator", "auditor"], {"operator": True}, 7])
def test_other_roles_are_errors(given):
    with pytest.raises(Exception, match="`roles` must be a list of"):
        _roles(given)
