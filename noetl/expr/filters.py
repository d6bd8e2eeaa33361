"""All filters of the template language, each with the line that documents it."""

from __future__ import annotations

from noetl.expr import filters_lists, filters_text
from noetl.expr.filtering import FILTERS, Filter, apply, apply_filter

__all__ = ["FILTERS", "Filter", "apply", "apply_filter", "filters_lists", "filters_text"]
