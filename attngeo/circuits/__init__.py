"""Circuits from weights: what heads read and write, and which heads and tokens they connect."""
