"""Where tensors come from: the Hub, a folder, a file, a package or a model in memory. Knows no model family."""
