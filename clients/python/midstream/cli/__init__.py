"""The commands `midstream chat`, `run` and `top`: a client of the client, for people at a terminal.

What a key means (`keys`), what an answer looks like (`view`), how it is broken into rows (`rows`), what a
file of requests says (`requests`) and how streams make a table (`table`) are pure. Only `screen` and `board`
know the terminal and its library, and only `answer`, `chat` and `run` hold streams.
"""
