"""Checks of the whole graph: of steps, of tasks in a pipeline, and of what they set and read."""
