"""Model folders: found, described, hashed, and loaded with every tensor accounted for."""
