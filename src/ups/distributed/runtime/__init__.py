"""Who and where a process is."""
