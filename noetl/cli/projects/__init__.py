"""Projects: a folder with `noetl.toml`, its playbooks, the files they name, and resources such as schedules."""
