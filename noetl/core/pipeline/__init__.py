"""The pipeline: decides what follows inside a step, on the worker."""
