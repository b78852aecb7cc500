"""Pictures and films of rollouts for trackers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ups.track.rollouts import GAP, draw


@pytest.mark.parametrize("shape, kinds, size", [((9, 24), [".png"], (192, 198)), ((9, 24, 40), [".png", ".gif"], None)])
def test_a_rollout_is_truth_prediction_and_their_difference(tmp_path: Path, shape, kinds, size):
    truth = np.random.default_rng(0).normal(size=(2, *shape, 1)).astype(np.float32)
    np.savez(tmp_path / "heat.npz", truth=truth, prediction_operator=truth)
    drawn = draw(tmp_path / "heat.npz", "operator", tmp_path / "out")
    assert [path.suffix for path in drawn] == kinds
    picture = np.asarray(Image.open(drawn[0])).astype(int)
    width = (picture.shape[1] - 2 * GAP) // 3
    parts = [picture[:, start : start + width] for start in (0, width + GAP, 2 * (width + GAP))]
    assert size is None or (width, picture.shape[0]) == size
    assert (parts[0] == parts[1]).all() and np.ptp(parts[0]) > 100
    assert np.ptp(parts[2].reshape(-1, 3), axis=0).max() == 0  # no difference is one colour
    if len(drawn) > 1:
        with Image.open(drawn[1]) as film:
            assert film.n_frames == shape[0]


def test_a_box_is_shown_by_the_plane_in_its_middle_and_what_is_steady_has_no_film(tmp_path: Path):
    truth = np.zeros((1, 1, 8, 6, 4, 1))
    truth[0, 0, :, :, 2, 0] = np.arange(8)[:, None]
    np.savez(tmp_path / "box.npz", truth=truth, prediction_operator=np.full_like(truth, np.nan))
    (picture,) = draw(tmp_path / "box.npz", "operator", tmp_path)
    left = np.asarray(Image.open(picture)).astype(int)[:, :192]
    assert np.abs(left[:, 0] - left[:, -1]).max() > 50
