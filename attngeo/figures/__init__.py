"""Figures: a DataFrame in, a plotly Figure out; nothing is saved here."""
