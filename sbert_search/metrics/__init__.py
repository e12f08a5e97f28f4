"""Metrics of rankings, similarities and classifications, and the significance of differences."""
