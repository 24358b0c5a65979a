"""The core: a stream's life, all streams, who listens to which, and what a tenant may begin. It knows no
socket, no door and no engine but the border's structs."""
