"""What each tenant may take, and has taken. No socket, no file and no stream."""
