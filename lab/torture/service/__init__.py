"""The torture of the reference service: load, faults, and an oracle that believes nobody but the outside."""
