"""Things to run: ``python -m examples.demo``."""
