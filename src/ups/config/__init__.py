"""Configuration: YAML files with includes and dotted overrides, checked against a pydantic schema."""
