"""`noetl backup`, `noetl restore` and `noetl upgrade`: operation of an installation."""
