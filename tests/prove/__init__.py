"""The long proofs: `make prove ARGS="crash load"`. Resumable; each writes docs/proof/<suite>.md."""
