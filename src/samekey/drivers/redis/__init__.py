"""Redis and Valkey, through redis-py."""
