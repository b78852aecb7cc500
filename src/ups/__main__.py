"""`python -m ups` is `ups`."""

from ups.cli.main import main

main()
