"""Servers that are not samekey's, for ``samekey check`` to be held against; each in an environment of its own."""
