"""The files of an index: segments, ids, tombstones, the manifest, and the commit that swaps it."""
