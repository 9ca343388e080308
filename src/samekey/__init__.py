"""samekey: same key, same answer, one effect."""
