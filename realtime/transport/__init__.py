"""The transport: sockets and bytes, by the rules of HTTP and WebSocket, with a timeout for everything.
Nothing here knows what messages say."""
