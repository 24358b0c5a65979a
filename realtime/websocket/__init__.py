"""The WebSocket endpoint: a connection as a listener of streams."""
