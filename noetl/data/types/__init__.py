"""Types of columns: their names, limits and the type that holds two of them."""
