"""The only database I/O: a driver runs one statement at a time and owns its connections."""
