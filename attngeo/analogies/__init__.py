"""Word analogies: question sets, the probe that answers them from vectors, and the statistics of a fair comparison."""
