"""Where heads look by position alone, from their queries and keys: `attngeo.positions`."""
