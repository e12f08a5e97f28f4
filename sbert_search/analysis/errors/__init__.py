"""The items on which a model errs most, and the kinds of items on which it errs more."""
