"""What a run needs, does and leaves behind, for the person who pays for it."""
