"""Phased operations: steps that are remembered, and go on where they stopped."""
