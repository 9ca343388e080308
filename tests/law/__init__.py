"""The table of states as law: what every statement of every store really does to a record."""
