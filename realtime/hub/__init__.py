"""The hub: all streams, who listens to which, and what becomes of them when engines come and go. It knows no
socket, no endpoint and no engine but the border's structs."""
