"""`python -m ups` is `ups`."""

from ups.distributed.launch.outcome import supervised

if supervised():  # before anything else can fail: a rank dies with its supervisor and writes to its own log
    from ups.distributed.launch.supervisor import rank_starts

    rank_starts()

from ups.cli.main import main

main()
