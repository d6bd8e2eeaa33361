"""How several servers on one store know of each other."""
