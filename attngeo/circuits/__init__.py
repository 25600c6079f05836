"""Circuits from weights: what heads read and write, which heads are alike, and what they connect."""
