"""The statements of the papers as functions that return residuals."""
