"""The engine child and the way to it: `worker`, `outbox` and `textdesk` are the child's side, `wire` the frames between,
the rest the parent's side (start, watch, restart, one stream per request). `engine.client` is the door.
"""
