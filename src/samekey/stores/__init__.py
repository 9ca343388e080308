"""What to ask of a database, as programs. Imports the core only; performs no I/O."""
