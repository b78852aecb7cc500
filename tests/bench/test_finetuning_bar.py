"""benchmarks/finetuning.py at toy size: three systems that a toy model does not know."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from toy_universal import SECONDS

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import finetuning
import korteweg_de_vries
from finetuning import main

from ups.data.open import open_dataset
from ups.equations import Incompressible, Wave
from ups.pipeline.config import run_config
from ups.training.restore import stage_folder

QUICK = ["training.sampling.points=512", "runtime.threads=1", "runtime.device=cpu", "data.workers=1"]


def test_a_soliton_travels_as_it_is() -> None:
    """u = 3c sech²(√c (x − ct) / 2δ), of which the ring's length cuts off e⁻⁴⁰."""
    c, x = 0.8, torch.arange(256, dtype=torch.float64) / 128
    times = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)

    def soliton(t: float) -> torch.Tensor:
        along = (x - 0.5 - c * t + 1) % 2 - 1
        return 3 * c / torch.cosh(c**0.5 / (2 * korteweg_de_vries.DELTA) * along).square()

    found = korteweg_de_vries.solve(soliton(0)[None], times)[0]
    for frame, t in zip(found, times.tolist(), strict=True):
        assert float((frame - soliton(t)).abs().max()) < 1e-3 * 3 * c


def test_few_trajectories_of_new_systems_are_set_beside_many_from_nothing(
    universal_bench: Path, tmp_path: Path, capsys, monkeypatch
) -> None:
    monkeypatch.setitem(finetuning.SYSTEMS, "wave", Wave(points=32, frames=3, duration=0.05))
    small = Incompressible(points=16, frames=3, duration=0.02)
    monkeypatch.setitem(finetuning.SYSTEMS, "incompressible", small)
    monkeypatch.setattr(finetuning, "TRAJECTORIES", 20)
    monkeypatch.setattr(korteweg_de_vries, "DURATION", 0.1)
    monkeypatch.setattr(korteweg_de_vries, "FRAMES", 5)
    run = universal_bench / f"{SECONDS:g}s-seed0"
    command = [str(run), *QUICK, "--few", "4", "--many", "8", "--seconds", str(SECONDS), "--out", str(tmp_path)]
    assert main([*command, "--system", "file"]) == 0
    assert "better on" in capsys.readouterr().out
    assert main(command) == 0
    found = json.loads((tmp_path / f"{run.name}-finetune.json").read_text())["systems"]
    assert [found[name]["task"] for name in found] == ["korteweg_de_vries", "wave", "incompressible"]
    for entry in found.values():
        assert entry["ratio"][0] == pytest.approx(entry["tuned"] / entry["nothing"], rel=1e-4)
        tuned, nothing = (tmp_path / f"{run.name}-{entry['task']}-all-{end}" for end in ("4", "8-from-nothing"))
        files = [run_config(one).tasks[entry["task"]].files for one in (tuned, nothing)]
        assert [one.trajectories for one in files if one] == [4, 8] and files[0].train == files[1].train  # pyright: ignore
        stages = [run_config(one).each_stage()["operator"] for one in (tuned, nothing)]
        assert [stage.start for stage in stages] == [str(stage_folder(run).resolve()), None]
        assert stages[0].width == stages[1].width == 8  # pyright: ignore[reportAttributeAccessIssue]
        assert not (tuned / "report.html").exists()
    printed = capsys.readouterr().out
    assert main(command) == 0 and printed.endswith(capsys.readouterr().out)  # nothing but the table: all was done
    assert main([*command, "--mode", "experts"]) == 2
    assert "holds results of other settings" in capsys.readouterr().err


def test_a_file_of_a_user_is_taken_for_the_one_made_here(universal_bench: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(korteweg_de_vries, "FRAMES", 4)
    monkeypatch.setattr(korteweg_de_vries, "DURATION", 0.1)
    file = korteweg_de_vries.write(tmp_path / "mine.hdf5", 20, seed=3, points=32)
    assert open_dataset(file).header.task == "korteweg_de_vries"
    run = universal_bench / f"{SECONDS:g}s-seed0"
    command = [str(run), *QUICK, "--few", "4", "--many", "8", "--seconds", str(SECONDS), "--out", str(tmp_path)]
    assert main([*command, "--system", "file", "--file", str(file)]) == 0
    assert not (tmp_path / "data").exists()
