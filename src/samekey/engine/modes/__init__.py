"""How an operation is run: atomic, leased, deferred, or without a key."""
