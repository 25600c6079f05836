"""The attention of a model: opened, its sites found, read ahead within memory, and given as forms."""
