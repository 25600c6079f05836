"""Which tensors hold Wq and Wk, and how they are cut into heads: data, and code that interprets it. Reads no file."""
