"""Bounds of what comes from others: how large a small file may be, how much memory there is, how a name is shown."""
