"""Differences between two checkpoints, layer by layer and head by head, and tests whether they share an origin."""
