"""The members of each answer, described once: processes write them, readers check them, OpenAPI lists them.

A later version may add members, never remove any. Readers ignore members that they do not know.

A member that defaults to ``UNSET`` may be absent. A member with another default is always written: the default is
what readers take for it in answers of versions that had no such member.
"""
