"""What providers, lookups and operators say about an effect, and what it settles."""
