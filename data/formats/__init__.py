"""Parts of the readers and writers of formats other than zarr."""
