"""Devices of other machines through llama.cpp's RPC backend: using theirs (`client`) and lending this machine's (`lender`).

The protocol is llama.cpp's (ggml-rpc), without authentication and not made for hostile peers: see docs/rpc.md.
"""
