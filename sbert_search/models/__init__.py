"""Encoders with heads (bi-encoders, cross-encoders, pre-training), and their folders."""
