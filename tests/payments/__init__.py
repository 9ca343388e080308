"""The reference payments service, end to end: real server, real worker, real provider."""
