"""The user's function: how it is declared, reached, judged, and what its answer looks like."""
