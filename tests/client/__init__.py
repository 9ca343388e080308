"""The client: what it does next, what it keeps, and how each HTTP library carries that."""
