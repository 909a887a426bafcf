"""The HTTP server: webhooks in, health and metrics out. The only place besides the sandbox that knows aiohttp.web."""
