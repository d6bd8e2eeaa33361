"""Secret managers over their HTTP APIs, one module each: `async def read(request, secret, version) -> value`.

The address and the credentials come from the entry (`url`, `auth`), else from the installation: Vault's environment
variables, or the credential chain of the provider's own library (extras `aws`, `gcp`, `azure`). The secret itself is
always read with our HTTP client, so that the network policy applies.

Invariant: credentials of the installation are not sent to an address that a playbook names, unless it is an address of
the provider.
"""
