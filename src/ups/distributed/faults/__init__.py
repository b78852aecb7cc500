"""Finding, recording, explaining and injecting faults."""
