"""Sequences in the KV cache: which exist and what they hold."""
