"""Where tensors come from: the Hub, a folder, a file, a Python package or a model in memory. Knows no model family."""
