"""Tests of what operators use."""
