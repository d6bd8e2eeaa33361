"""Secret managers over their HTTP APIs, one file each: `async def read(asked, secret, version) -> value`.

No vendor library is needed. Where a manager lives and how to sign in comes from the entry (`url`, `auth`),
else from the variables its own tools use (`VAULT_ADDR`, `AWS_REGION`, ...).
"""
