"""Sockets and bytes, by the rules of HTTP and WebSocket and with an end to every patience. Nothing here knows
what is said."""
