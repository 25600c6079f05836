"""Text to train on: from files, folders and the Hub to masked batches of token sequences."""
