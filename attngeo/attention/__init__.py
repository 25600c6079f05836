"""The attention of a model: opened, found, read ahead within memory limits, and turned into forms."""
