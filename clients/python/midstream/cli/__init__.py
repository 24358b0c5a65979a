"""The commands `midstream chat` and `midstream run`: a client of the client, for people at a terminal.

What a key means (`keys`), what an answer looks like (`view`), how it is broken into rows (`rows`) and what a
file of requests says (`requests`) are pure. Only `screen` knows the terminal and its library, and only
`answer`, `chat` and `run` hold streams.
"""
