"""What repeats published experiments and proofs: data sets, settings, baselines, published numbers, statements."""
