"""The parts of `engine.backends.openai`: HTTP, protocol, counting, the line in front of the server, the probe."""
