"""The files of an index: segments, ids, tombstones and the manifest, which a commit replaces."""
