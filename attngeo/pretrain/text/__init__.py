"""Text to train on: from files, folders and the Hub to batches of masked token sequences."""
