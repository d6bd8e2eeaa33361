"""Process facilities: clock, event loop, threads, shared resources, network policy."""
