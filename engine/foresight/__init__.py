"""How many bytes of a text a grammar may force in one run, as its source says, so that nobody has to try."""
