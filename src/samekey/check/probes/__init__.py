"""The probes: small files, one idea each, in the order in which they are run."""
