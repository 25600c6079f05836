"""Many independent runs: in one process, in several, or on a Dask cluster; results and downloads that are kept."""
