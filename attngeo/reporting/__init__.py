"""Reports and figures: a recipe (TOML) becomes a page with tables and provenance; `attngeo.plot` draws one figure."""
