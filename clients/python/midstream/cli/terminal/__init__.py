"""What draws on the terminal, with its library (`prompt_toolkit`)."""
