"""Figures: DataFrames in, a plotly Figure out. Nothing here opens a model or a file of results.

`kinds` is the table of all kinds and their options, `save` writes a figure to a file.
"""
