"""The terminal's screens: what draws with its library (`prompt_toolkit`)."""
