"""``python -m samekey.cli``."""

from . import main

main()
