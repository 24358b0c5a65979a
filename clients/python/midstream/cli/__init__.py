"""The commands `midstream chat`, `run` and `top`: users of the client, for people at a terminal.

What a key means (`key_bindings`), what an answer looks like (`answer_view`), how it is broken into rows
(`wrap`), what a file of requests says (`request_file`) and how streams make a table (`streams_table`) are
pure. Only `chat` and `terminal/` know the terminal's library, and only `answer_controller`, `chat` and `jobs`
hold streams.
"""
