"""Redis and Valkey as a key store: one Lua script for each statement."""
