"""Bounds of what comes from others: how large a small file may be, and how much memory there is."""
