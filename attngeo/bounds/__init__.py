"""Limits of what comes from others, and of this machine: names, small files, memory and cores."""
