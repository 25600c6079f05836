"""What differs between two checkpoints: their heads side by side, and whether they share an origin."""
