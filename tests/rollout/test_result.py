"""A rollout says what it is, draws itself, moves, stands beside the truth, and is kept with names and units."""

from __future__ import annotations

import io
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ups.data.open import open_dataset
from ups.errors import UserError
from ups.fields import Grid
from ups.rollout.result import Rollout

UNITS = {"T": "K", "time": "s", "x": "m"}
TIMES = torch.arange(1, 6, dtype=torch.float64) * 0.1


def rollout(shape=(16,), lead=(), channels=("u", "T"), seed=0) -> Rollout:
    values = torch.randn(*lead, 5, *shape, len(channels), generator=torch.Generator().manual_seed(seed))
    return Rollout(values, TIMES, channels, "heat", ("step 3: <careful>",), Grid.cell_centred(shape), UNITS)


def picture(content: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))


def test_it_says_its_channels_units_times_and_warnings():
    words = repr(rollout(lead=(2, 3)))
    for word in ("heat", "2 × 3", "16 grid", "5 from 0.1 to 0.5 s", "T [K]", "step 3: <careful>"):
        assert word in words
    page = rollout()._repr_html_()
    assert "&lt;careful&gt;" in page and "data:image/png;base64," in page and "http" not in page


@pytest.mark.parametrize("shape", [(16,), (8, 12), (4, 5, 6)])
def test_it_draws_and_moves_in_every_dimension(tmp_path, shape):
    one = rollout(shape)
    drawn = picture(one.plot().save(tmp_path / "a.png").read_bytes())
    assert drawn.std() > 5 and not np.array_equal(drawn, picture(rollout(shape, seed=1).plot()._repr_png_()))
    film = Image.open(one.animate("T").save(tmp_path / "a.gif"))
    assert film.n_frames == 5 and film.info["loop"] == 0
    frames = []
    for number in range(5):
        film.seek(number)
        frames.append(np.asarray(film.convert("RGB")))
    assert all(not np.array_equal(a, b) for a, b in pairwise(frames))


@pytest.mark.parametrize("shape", [(16,), (8, 12)])
def test_members_are_drawn_as_mean_spread_and_fan_and_move_together(tmp_path, shape):
    several = replace(rollout(shape, lead=(6, 2)), count=6)
    torch.testing.assert_close(several.spread, several.values.std(0))
    first, second = (picture(several.plot(sample=start)._repr_png_()) for start in (0, 1))
    assert first.std() > 5 and not np.array_equal(first, second)
    film = several.animate("T", sample=1)
    assert len(film.figure.axes) == (1 if len(shape) == 1 else 5)  # four members, and the colours
    with pytest.raises(UserError, match="sample is 2; there are 2"):
        several.plot(sample=2)
    at_points = several.values.flatten(3, -2)
    points = replace(several, values=at_points, where=torch.rand(at_points.shape[3], 1))
    assert picture(points.plot()._repr_png_()).std() > 5
    with pytest.raises(UserError, match="no spread; ask for several"):
        _ = rollout(shape).spread


def test_beside_the_truth_it_says_its_error_and_is_exact_beside_itself():
    one = rollout((8, 12), lead=(2,))
    right = one.values * 1.1
    beside = one.compare(right)
    assert torch.allclose(beside.errors, torch.full_like(beside.errors, 0.1 / 1.1), atol=1e-6)
    assert not one.compare(one).errors.any() and "T" in repr(beside)
    assert picture(beside.plot("u", sample=1)._repr_png_()).std() > 5
    assert "data:image/gif" in beside.animate("u")._repr_html_()
    with pytest.raises(UserError, match="has the N frames after the start"):
        one.compare(right[:, 1:])


def test_a_spectrum_shows_the_wave_that_is_there():
    x = (torch.arange(32) + 0.5) / 32
    wave = torch.sin(2 * torch.pi * 3 * x).expand(5, 32)[..., None]
    axes = Rollout(wave, TIMES, ("u",), "w", (), Grid.cell_centred((32,))).spectrum().figure.axes[0]
    waves, energy = axes.lines[0].get_data()
    assert waves[np.argmax(energy)] == 3


def test_points_are_drawn_over_time_and_have_no_spectrum_film_or_netcdf(tmp_path):
    one = Rollout(torch.randn(5, 3, 1), TIMES, ("u",), "w", (), torch.rand(3, 2))
    assert picture(one.plot()._repr_png_()).std() > 5
    for act in (one.spectrum, one.animate, lambda: one.save(tmp_path / "a.nc")):
        with pytest.raises(UserError):
            act()
    with np.load(one.save(tmp_path / "a.npz")) as kept:
        assert np.array_equal(kept["points"], one.where)


def test_netcdf_keeps_values_positions_times_and_units(tmp_path):
    one = rollout((8, 12), lead=(3,))
    back = open_dataset(one.save(tmp_path / "a.nc"))
    assert torch.equal(back.read(range(3), slice(None)).values, one.values)
    assert back.grid.same_as(one.where) and torch.equal(back.times, TIMES) and back.header.notes["units"] == UNITS
    with pytest.raises(UserError, match="exists"):
        one.save(tmp_path / "a.nc")


def test_xarray_has_the_axes_named_and_the_units(tmp_path):
    pytest.importorskip("xarray")
    made = rollout((8, 12), lead=(2, 3)).to_xarray()
    assert made["T"].dims == ("member", "sample", "time", "x", "y") and made["T"].attrs["units"] == "K"
    assert made["x"].attrs["units"] == "m" and made["time"].values.tolist() == TIMES.tolist()


def test_a_wrong_name_is_refused_in_a_sentence(tmp_path, monkeypatch):
    one = rollout()
    for act, sentence in (
        (lambda: one.plot("v"), "no channel 'v'"),
        (lambda: one.plot(sample=1), "there are 1"),
        (lambda: one.save("a.png"), "saved as .nc or .npz"),
        (lambda: one.plot().save("a.bmp"), "ends in .png"),
        (lambda: one.animate().save("a.avi"), "ends in .gif or .mp4"),
    ):
        with pytest.raises(UserError, match=sentence):
            act()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="made by ffmpeg, which is not installed"):
        one.animate().save(tmp_path / "a.mp4")
    assert not list(Path(tmp_path).iterdir())
