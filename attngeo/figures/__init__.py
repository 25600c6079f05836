"""Figures: DataFrames in, a plotly Figure out. Nothing here opens a model or a file of results.

`kinds` is the table of all kinds, `options` declares what can be chosen, `save` writes a figure to a file.
"""
