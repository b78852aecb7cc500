import io
import math
from dataclasses import replace

import numpy as np
import pytest
from demo_report import advection_page, cube_page, darcy_page, vortex_page
from matplotlib import colormaps
from matplotlib.collections import QuadMesh
from matplotlib.colors import to_rgb
from PIL import Image

from ups.report.animation import player_data
from ups.report.boxes import box_figure
from ups.report.drawing import error_limit, field_limits, render
from ups.report.legend import FIELD_MAP, NOT_A_NUMBER, OUTSIDE
from ups.report.pictures import cuts_figure, film_figure, space_time_figure, steady_figure


def test_field_limits_are_the_truths_and_ignore_what_is_not_a_number():
    assert field_limits([np.array([1.0, 5.0]), np.array([-2.0, math.nan, math.inf])]) == (-2.0, 5.0)


def test_a_constant_field_still_has_a_scale():
    assert field_limits([np.full(4, 3.0)]) == (0.0, 6.0)
    assert field_limits([np.zeros(4)]) == (-1.0, 1.0)
    assert field_limits([np.full(4, math.nan)]) == (0.0, 1.0)


def test_the_error_limit_holds_nearly_all_errors_of_all_models():
    small, large = np.linspace(-0.1, 0.1, 1001), np.linspace(-0.3, 0.3, 1001)
    limit = error_limit([small, large], field_span=2.0)
    assert (np.abs(np.concatenate([small, large])) <= limit).mean() == pytest.approx(0.995, abs=1 / 1001)


def test_an_exploded_model_cannot_blank_the_others():
    assert error_limit([np.full(10, 0.1), np.full(10, 1e20)], field_span=2.0) == 2.0


def test_errors_that_are_zero_or_not_numbers_still_have_a_scale():
    assert error_limit([np.zeros(5)], field_span=2.0) == 2.0
    assert error_limit([np.full(5, math.nan)], field_span=2.0) == 2.0


def _panels(figure):
    """Title or row name of each panel, and its colour limits."""
    meshes = [(axes, mesh) for axes in figure.axes for mesh in axes.collections if isinstance(mesh, QuadMesh)]
    return [(axes, mesh.get_clim()) for axes, mesh in meshes if mesh.get_array().size > 300]


@pytest.mark.parametrize(
    ("figure", "fields", "errors", "statics"),
    [
        (lambda: space_time_figure(task := advection_page(count=1), task.samples[0], 0), 3, 2, 0),
        (lambda: film_figure(task := vortex_page(count=1), task.samples[0], 1), 15, 10, 0),
        (lambda: steady_figure(task := darcy_page(count=3), task.samples, 0), 9, 6, 3),
    ],
)
def test_panels_of_a_picture_share_their_limits(figure, fields, errors, statics):
    limits = [clim for _, clim in _panels(figure())]
    assert len(limits) == fields + errors + statics
    counts = sorted(limits.count(clim) for clim in set(limits))
    assert counts == sorted(count for count in (fields, errors, statics) if count)
    (symmetric,) = {clim for clim in limits if clim[0] == -clim[1]}
    assert limits.count(symmetric) == errors


def test_a_box_shows_three_faces_of_truth_model_and_error():
    task = cube_page(count=1)
    volume = task.samples[0].truth[-1, ..., 0]
    low, high = field_limits([volume])
    panels = box_figure(task, task.samples[0], 0).axes[:3]
    assert [len(axes.images) for axes in panels] == [3, 3, 3]
    for face, shown in zip((volume[:, :, -1], volume[:, 0], volume[0]), panels[0].images, strict=True):
        expected = colormaps[FIELD_MAP]((face.T - low) / (high - low))
        np.testing.assert_allclose(shown.get_array(), expected)
    assert panels[2].get_title().endswith("− truth")


def test_cells_outside_the_domain_are_grey_and_count_for_no_limit():
    task = cube_page(count=1)
    mask = np.ones(task.samples[0].truth.shape[1:-1], bool)
    mask[:, 4:9, 5:9] = False
    spoiled = np.where(mask[..., None], task.samples[0].truth, 1e9)
    clean, masked = (
        replace(task, samples=[replace(task.samples[0], truth=truth, mask=mask)])
        for truth in (task.samples[0].truth, spoiled)
    )
    plane = masked.plane
    for figure in (
        cuts_figure(masked, masked.samples[0], 0),
        box_figure(masked, masked.samples[0], 0),
        film_figure(plane, plane.samples[0], 0),
    ):
        with Image.open(io.BytesIO(render(figure, "png"))) as picture:
            pixels = np.asarray(picture.convert("RGB")).reshape(-1, 3)
        assert (pixels == [round(255 * part) for part in to_rgb(OUTSIDE)]).all(1).mean() > 0.005
        assert not (pixels == [round(255 * part) for part in to_rgb(NOT_A_NUMBER)]).all(1).any()
    data = player_data(plane, 10**8)
    assert data["masked"] and data == player_data(clean.plane, 10**8)
    assert not player_data(task.plane, 10**8)["masked"]


def test_a_trajectory_is_drawn_at_its_own_times():
    task = cube_page(count=2).plane
    times = 7.0 + task.times
    task = replace(task, samples=[task.samples[0], replace(task.samples[1], times=times)])
    titles = [[axes.get_title() for axes in film_figure(task, sample, 0).axes[:5]] for sample in task.samples]
    assert titles[0][0] == "t = 0" and titles[1][0] == "t = 7" and titles[1][-1] == "t = 8"
    assert [each["frames"][-1] for each in player_data(task, 10**8)["sequences"]] == ["t = 1", "t = 8"]
