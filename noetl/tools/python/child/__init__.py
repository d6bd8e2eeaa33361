"""The other end of the Python pool: a process that runs authors' code, one call after another.

It is started by `python_pool.py` with a socket. A request is `marshal` data (this process trusts
its parent); an answer is JSON (the parent does not trust the code that ran here). Standard output
and error are pipes that the parent reads, so a `print` can never disturb the protocol.

Starting must be cheap, so nothing is imported here that an average call does not need:

    code.py    find out what to run, run it, find its output
    data.py    the output as JSON
    serve.py   the life of the process: requests, surroundings, errors
"""
