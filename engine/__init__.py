"""The engine: token ids, VRAM and models. It knows nothing of chats or people and never imports `bot`.

The rest of the world uses `engine.client` (the narrow face), `engine.types`, `engine.errors` and `engine.config`.
"""
