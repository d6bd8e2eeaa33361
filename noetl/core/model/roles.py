"""The roles of tokens, which routes and `wait` tasks require."""

from __future__ import annotations

from typing import Literal, get_args

Role = Literal["viewer", "operator", "author", "admin", "worker"]
ROLES: tuple[Role, ...] = get_args(Role)
