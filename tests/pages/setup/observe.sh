servers
