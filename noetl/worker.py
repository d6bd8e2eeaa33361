"""The data-plane process: settings, back ends, tools, pool, lease; it serves no HTTP."""
