"""Sequences in the KV cache: which exist, what they hold, and how a model file is told from another."""
