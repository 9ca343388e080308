"""PostgreSQL: asyncpg for event loops, psycopg for threads."""
