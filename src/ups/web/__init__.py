"""A trained run over HTTP: rollouts for programs, the playground for people."""
