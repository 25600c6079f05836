"""The scores of attention as data, and what is made of them: rows, summaries, conditions and matrices."""
