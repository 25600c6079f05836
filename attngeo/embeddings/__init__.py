"""Tables of word vectors: the token embeddings of a checkpoint, files of word vectors, and CBOW trained on a text."""
