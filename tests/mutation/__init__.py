"""Mutation tests: small changes of the engine, the pipeline and the server, each of which some test must notice."""
