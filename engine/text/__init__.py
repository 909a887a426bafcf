"""Text in and out of token ids: chat templates, bytes to characters, stop strings, thinking. Pure."""
