"""Models that are fitted to tables and sequences of a user, as estimators of scikit-learn."""
