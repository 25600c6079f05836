"""Many independent runs: in one process, in several of this machine, or on a Dask cluster; results and downloads that are kept."""
