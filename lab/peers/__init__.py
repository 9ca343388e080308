"""Servers that are not samekey's, for ``samekey check``, in an environment of their own."""
