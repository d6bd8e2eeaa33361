"""`noetl doctor`: checks of an installation."""
