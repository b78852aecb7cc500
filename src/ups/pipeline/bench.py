"""`ups bench --universal`: one packaged configuration with several seeds, each a run that goes on where it stopped, and
the table of all.

What a table needs of a finished run is a small file beside its folder, OUT/NAME.json: where that is, the run is not
looked for, so seeds may be trained on machines that share nothing else.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Any

from ups.bench.ratios import Result, compared, counted, markdown
from ups.config.load import read_config
from ups.durable import write
from ups.errors import UserError
from ups.pipeline.run import run
from ups.track.jsonl import plain

UNIVERSAL = "universal"
ALSO = "compare.unet={}"
"""What the table compares with beyond the configuration, unless overrides say otherwise."""


def universal(
    seconds: float,
    seeds: Sequence[int],
    out: Path,
    words: Sequence[str] = (),
    *,
    rivals_once: bool = False,
    as_json: bool = False,
) -> None:
    """Train the joint model for so many seconds with each seed, and what it is compared with; write and print a table.

    `words` are names of tasks, if not all of them, and overrides. `rivals_once`: only the first seed trains what the
    model is compared with; the others learn from the same data, so that ratios are of the same test trajectories.
    """
    tasks, overrides = [word for word in words if "=" not in word], [word for word in words if "=" in word]
    seeds = list(dict.fromkeys(seeds))
    results = []
    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        for seed in seeds:
            alone = rivals_once and seed != seeds[0]
            asked = [
                f"training.seconds={seconds:g}",
                *chosen(tasks),
                ALSO,
                *overrides,
                *(["compare={}"] if alone else []),
            ]
            data_seed = seeds[0] if rivals_once else seed
            results.append(finished(f"{seconds:g}s-seed{seed}", asked, out, seed, data_seed))
    numbers = compared(results)
    content = {
        "results": [result.name for result in results],
        "tasks": numbers,
        "counts": {rival: counted(numbers, rival) for rival in results[0].rivals},
    }
    write_json(out / f"universal-{seconds:g}s.json", content)
    write(out / f"universal-{seconds:g}s.md", f"{markdown(results)}\n".encode())
    print(json.dumps(plain(content), indent=1) if as_json else markdown(results))


def chosen(tasks: Sequence[str]) -> list[str]:
    """The override that leaves these of the configuration's tasks; none leaves all."""
    there = read_config(UNIVERSAL, []).values["tasks"]
    if unknown := [task for task in tasks if task not in there]:
        raise UserError(f"{UNIVERSAL} has no task {unknown[0]!r}; it has {', '.join(there)}")
    return [f"tasks={json.dumps({name: there[name] for name in tasks})}"] if tasks else []


def finished(name: str, asked: Sequence[str], out: Path, seed: int = 0, data_seed: int | None = None) -> Result:
    """What tables need of the run of that name in `out`, which is made or finished if that is not there yet.

    `asked` are the overrides that make it what it is. Made data lie in `out` too, for all runs of a seed. No
    report is written, for which a GPU would wait: `ups report` does it.
    """
    path, data_seed = out / f"{name}.json", seed if data_seed is None else data_seed
    given = [f"seed={seed}", f"data.seed={data_seed}", *asked]
    if path.is_file():
        if json.loads(path.read_text())["asked"] != given:
            raise UserError(f"{path} holds results of other settings; choose another --out, or remove it")
        return known(path)
    run(UNIVERSAL, [f"name={name}", f"data.root={data_folder(out, data_seed)}", *given], out, page=False)
    result = Result.of(out / name)
    write_json(path, {"asked": given, "result": result.plain()})
    return result


def known(path: Path) -> Result:
    """That of a finished run, from its small file."""
    return Result(**json.loads(path.read_text())["result"])


def data_folder(out: Path, seed: int) -> Path:
    return out / "data" / f"seed{seed}"


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, (json.dumps(plain(content)) + "\n").encode())
