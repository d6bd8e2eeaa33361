"""What happens next inside a step: the worker's half."""
