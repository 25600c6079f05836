"""What the estimators have in common: files of fitted models, and tables of users."""
