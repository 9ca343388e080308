"""The engine: a store, its drivers and a policy joined. Edges and workers call it; it knows no server."""
