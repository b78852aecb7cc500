"""The command line: one file a command, each a thin layer over a function that Python users can call."""
