"""What a run leaves behind while it works: events, the environment it ran in, progress on the terminal."""
