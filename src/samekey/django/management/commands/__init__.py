"""``samekey_worker``, ``samekey_sweep``, ``samekey_doctor``."""
