"""Random inputs for any module of transformers, from what its forward takes and from its configuration.

`combinations` puts together what the makers of `tokens`, `images`, `sound`, `series` and `states` offer for each name.
"""
