"""Filters (``--where``): from an SQL condition over metadata to the rows that match it."""
