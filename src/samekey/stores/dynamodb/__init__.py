"""DynamoDB as a key store: one table, conditional writes, nothing else."""
