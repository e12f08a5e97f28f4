"""Encoders with heads (bi-encoders, cross-encoders, pre-training), their losses and folders."""
