"""The door for WebSockets: a connection as a listener."""
