"""The torture of the outbox: workers are killed, the provider's ledger is the judge."""
