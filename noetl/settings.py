"""Environment, files and flags, read once into one frozen object."""
