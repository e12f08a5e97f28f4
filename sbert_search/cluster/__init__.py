"""Embed and search on several machines with Ray; needs the optional dependency ``ray``."""
