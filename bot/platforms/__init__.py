"""Adapters: one folder per platform, the same files in each; `base` is the contract. Nothing here touches the database."""
