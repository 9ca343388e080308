"""SQLite, through the standard library."""
