"""The SQL stores: one set of programs, one file of statements per dialect."""
