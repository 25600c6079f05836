"""Which tensors hold Wq and Wk and how they are cut, as data. Reads no file."""
