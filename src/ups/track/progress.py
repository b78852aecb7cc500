"""How far a long task is, on the terminal or in a log.

    with Progress("training", total=2400, unit="steps") as progress:
        progress.update(done, "loss 0.012")

On a terminal: one line with a bar, the rate and the time left, which narrow terminals get without the bar. In a log
(output is not a terminal): a plain line every ten seconds and one at the end, also while the first unit takes minutes.
`Progress.silent = True` (the command line's `--quiet`) or `quiet=True`: nothing.
"""

from __future__ import annotations

import sys
from threading import Event, Thread
from time import monotonic
from types import TracebackType
from typing import ClassVar

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

LOG_INTERVAL = 10.0  # seconds between lines in a log
BAR = (8, 40)  # fewest and most columns of the bar


class Progress:
    """One display for one task. `start` is where a resumed task begins, so that its rate counts new work only; `size`
    is what a unit holds of what `tick` counts, such as bytes of a megabyte.
    """

    silent: ClassVar[bool] = False

    def __init__(
        self, title: str, total: int, unit: str = "steps", *, start: int = 0, size: int = 1, quiet: bool = False
    ) -> None:
        self.title, self.total, self.unit, self.size = title, total, unit, size
        self.done = self._start = start
        self.text = ""
        self._quiet = quiet or Progress.silent
        self._began = self._logged = monotonic()
        self._live: Live | None = None
        self._ended = Event()

    def __enter__(self) -> Progress:
        self._began = self._logged = monotonic()
        console = Console()
        if not self._quiet and console.is_terminal and not console.is_dumb_terminal:
            self._live = Live(self, console=console, refresh_per_second=5)
            self._live.start()
        elif not self._quiet:
            Thread(target=self._break_silence, daemon=True).start()
        return self

    def update(self, done: int, text: str | None = None) -> None:
        """`done` of `total` so far, with a few words such as the loss. Cheap: call it as often as you like."""
        self.done = done
        if text is not None:
            self.text = text
        if done < self.total and self._live is None and not self._quiet:  # the last line comes at the end
            self._log_if_due()

    def tick(self, done: int, total: int) -> None:
        """The same for work that says itself how much there is."""
        self.total = -(-total // self.size)
        self.update(-(-done // self.size))

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        if self._live is not None:
            self._live.stop()
        elif not self._quiet:
            took = f"in {_duration(monotonic() - self._began)}"
            self._log(", ".join(part for part in (f"{self._counted()} {took}", self._rate(), self.text) if part))

    def _log_if_due(self) -> None:
        if monotonic() - self._logged >= LOG_INTERVAL:
            self._log(", ".join(self._words()))

    def _break_silence(self) -> None:
        """Of work that reports nothing for long."""
        while not self._ended.wait(LOG_INTERVAL):
            self._log_if_due()

    def _log(self, line: str) -> None:
        self._logged = monotonic()
        print(f"{self.title}: {line}", file=sys.stdout, flush=True)

    def _counted(self) -> str:
        return f"{self.done}/{self.total} {self.unit}"

    def _speed(self) -> float:
        elapsed = monotonic() - self._began
        return (self.done - self._start) / elapsed if elapsed > 0 else 0.0

    def _rate(self) -> str:
        speed = self._speed()
        if speed <= 0:
            return ""
        return f"{speed:.0f}/s" if speed >= 100 else f"{speed:.1f}/s" if speed >= 1 else f"{1 / speed:.1f} s each"

    def _words(self) -> list[str]:
        pace = self._rate() or f"{_duration(monotonic() - self._began)} so far"
        return [part for part in (self._counted(), pace, self._left(), self.text) if part]

    def _left(self) -> str:
        speed, rest = self._speed(), self.total - self.done
        return f"{_duration(rest / speed)} left" if speed > 0 and rest > 0 else ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """One line that fits: the bar takes what the words leave, or goes when they leave too little."""
        words = "  ".join(self._words())
        room = options.max_width - len(self.title) - len(words) - 4
        if room < BAR[0]:
            yield Text(f"{self.title}  {words}", no_wrap=True, overflow="ellipsis")
            return
        line = Table.grid(padding=(0, 2, 0, 0))
        bar = ProgressBar(max(self.total, 1), self.done, width=min(room, BAR[1]))
        line.add_row(Text(self.title, style="bold"), bar, Text(words))
        yield line


def _duration(seconds: float) -> str:
    """12 s, 3 min 20 s, 2 h 05 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
