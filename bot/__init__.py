"""The chat service: platforms in, replies out. It owns the database and every decision about people.

It sees the engine only through `engine.face`, `engine.client`, `engine.types`, `engine.errors` and `engine.config`.
"""
