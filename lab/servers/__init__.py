"""Throwaway database servers on loopback, for tests, the demo and the torture."""
