"""All filters of the template language, each with the line that documents it."""

from __future__ import annotations

from noetl.core.templates.filters import lists as filters_lists
from noetl.core.templates.filters import texts as filters_text
from noetl.core.templates.filters.registry import FILTERS, Filter, apply, apply_filter

__all__ = ["FILTERS", "Filter", "apply", "apply_filter", "filters_lists", "filters_text"]
