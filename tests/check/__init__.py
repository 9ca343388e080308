"""``samekey check`` against servers that are right, and servers with one fault each."""
