"""The pure core: no I/O, no clock, no randomness, no logging. Third-party: rfc8785 and http-sf only."""
