"""The child process of the Python pool: runs authors' code, one call after the other.

`process_pool.py` starts it with a socket. A request is `marshal` data (the child trusts its parent); a reply is JSON
(the parent does not trust the code that ran here). Standard output and standard error are pipes that the parent
reads, so a `print` cannot corrupt the protocol.

Start-up must be fast, so modules that an average call does not need are imported lazily:

    code.py    compiles and executes the code, and finds its output
    data.py    encodes the output as JSON
    saved_state.py  saves and restores state of the standard library that the code changes
    serve.py   reads requests, sets up and restores the process state, reports errors
"""
