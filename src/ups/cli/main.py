"""`ups`: the commands, and what becomes of their errors.

A user's mistake is one sentence and exit code 2, work that was given up one sentence and 1, a bug of ours a traceback
and 1, a model that failed a gate 3, work that was stopped and can go on 75, any other Ctrl-C 130. Commands import what
they need when they run, so `ups --help` answers at once.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from ups.cli.bench import bench
from ups.cli.data import convert, fetch, inspect, make, stats
from ups.cli.finetune import finetune
from ups.cli.fit import fit
from ups.cli.launch import launching
from ups.cli.operations import check, clean, compare, runs, sweep, watch
from ups.cli.plan import plan
from ups.cli.run import config, evaluate, explain, export, push, report, run, train
from ups.cli.serve import serve
from ups.cli.simulate import simulate
from ups.cli.store import build, verify
from ups.cli.streams import outlast_readers
from ups.cli.track import sync
from ups.distributed.launch.outcome import supervised
from ups.errors import GATE_FAILED, STOPPED, GateFailed, GaveUp, Stopped, UserError


class Commands(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        """Ctrl-C that no command handled: the shell's usual code, whatever the version of typer makes of it."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            raise typer.Exit(130) from None


# Plain help rather than rich's: it starts faster and stays readable in logs and narrow terminals.
app = typer.Typer(
    cls=Commands, no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
)
data = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
app.add_typer(data, name="data")
store = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
app.add_typer(store, name="store")
track = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
app.add_typer(track, name="track")
app.add_typer(launching, name="launch")

for command in (run, fit, train, finetune, evaluate, report, simulate, serve, export, push, explain, config, bench):
    app.command()(command)
for command in (check, plan, runs, compare, watch, clean, sweep):
    app.command()(command)
for command in (make, fetch, inspect, stats, convert):
    data.command()(command)
for command in (build, verify):
    store.command()(command)
track.command()(sync)


def print_version(asked: bool) -> None:
    if asked:
        from ups import __version__

        print(f"ups {__version__}")
        raise typer.Exit


@app.callback()
def ups(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", callback=print_version, is_eager=True)
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Learn to simulate many physical systems with one model.

    \b
    Example: make data, train, compare and write a report, all in one
      ups run quickstart
    """
    if quiet:
        from ups.track.progress import Progress

        Progress.silent = True


@data.callback()
def datasets() -> None:
    """Make data or fetch published ones, look into files, convert them.

    \b
    Example:
      ups data make --list
      ups data make advection --count 100 --set beta=0.4 --out data
      ups data inspect data/1D_Advection_Sols_beta0.4.hdf5
    """


@store.callback()
def stores() -> None:
    """Write what training reads ahead of it, and check it.

    \b
    Example:
      ups store build quickstart
      ups store verify runs/quickstart
    """


@track.callback()
def tracks() -> None:
    """Send trackers what they have not got.

    \b
    Example:
      ups track sync runs/quickstart
    """


def main() -> NoReturn:
    """Runs the command line and ends the process with its exit code."""
    outlast_readers()
    code, decided = _run()
    if "RANK" not in os.environ:
        sys.exit(code)
    # A rank leaves without the interpreter's farewell, in which it might wait for peers that are gone. Where a
    # supervisor reads outcome.json, an end by decision is no failure: only crashes have another code than 0.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0 if supervised() and decided else code)


def _run() -> tuple[int, bool]:
    """The exit code, and whether the end was decided: anything else is a crash."""
    try:
        app(prog_name="ups")
    except Stopped as stopped:
        print(f"\nstopped: {stopped}; start the same command again to go on", file=sys.stderr)
        return STOPPED, True
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2, True
    except GaveUp as error:
        print(f"error: gave up: {error}", file=sys.stderr)
        return 1, True
    except GateFailed as failed:
        print(f"error: {failed}", file=sys.stderr)
        return GATE_FAILED, True
    except SystemExit as end:  # the usual way out of typer
        return (end.code if isinstance(end.code, int) else int(end.code is not None)), end.code in (0, None)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            where = f" for {error.filename}" if error.filename else ""
            print(f"error: the disk is full{where}; free some space or choose another folder", file=sys.stderr)
            return 2, False
        if isinstance(error, OSError) and error.filename:
            print(f"error: {error.filename}: {error.strerror}; check the path and its permissions", file=sys.stderr)
            return 2, False
        traceback.print_exc()
        print(f"error: {type(error).__name__}: {error}\nthis is a bug in ups; please report it", file=sys.stderr)
        return 1, False
    return 0, True
