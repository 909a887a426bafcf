"""Fetches models from Hugging Face, its mirrors, or ModelScope: `hearth model pull`. Knows nothing of bots or engines.

Names, sizes and checksums come through `huggingface_hub` (or ModelScope's plain https API); the bytes are fetched here,
because since its version 2 that library begins a file from its first byte whenever the program was stopped. This is the
only room that imports it.
"""
