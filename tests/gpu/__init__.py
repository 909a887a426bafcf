"""The check of a machine with a GPU: `tests/gpu/check.sh`. Not collected by pytest."""
