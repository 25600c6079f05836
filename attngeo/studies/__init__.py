"""Many independent runs: results that are kept, each under a key of all that it depends on."""
