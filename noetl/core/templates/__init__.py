"""Templates: parse, free names, evaluate against a mapping."""
