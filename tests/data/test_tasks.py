"""The registry, and tasks written as plain data."""

from dataclasses import replace

import pytest
import yaml

from ups.data.tasks import register, task, task_from_mapping, tasks
from ups.equations.named import EQUATIONS
from ups.errors import UserError
from ups.fields import Boundary, Channel, Grid, Invariant, Side

HEAT = """
name: heat
dimension: 2
channels: [temperature, {name: density, transform: log}]
boundary: [periodic, [{kind: value, value: [1.0, 2.0]}, flux]]
latent_spacing: 0.0625
parameters: [kappa]
dt: 0.1
invariants: [{channel: density, tolerance: 1.0e-4}]
"""


def test_the_built_in_tasks_come_from_the_equations():
    assert [spec.name for spec in tasks()][: len(EQUATIONS)] == list(EQUATIONS)
    assert task("darcy").steady and task("darcy").static == ("a",) and task("burgers").parameters == ("nu",)
    assert all(spec.latent_spacing is None for spec in tasks())  # a model's business, not an equation's
    assert task("advection").invariants[0].channel == "u" and task("advection").boundary.periodic == (True,)


def test_yaml_defines_a_task():
    spec = task_from_mapping(yaml.safe_load(HEAT))
    assert spec.channels == (Channel("temperature"), Channel("density", "log"))
    periodic = Side("periodic")
    assert spec.boundary == Boundary(((periodic, periodic), (Side("value", (1.0, 2.0)), Side("flux"))))
    assert spec.invariants == (Invariant("density", 1e-4),) and spec.dt == 0.1 and spec.history == 1
    everywhere = task_from_mapping({**yaml.safe_load(HEAT), "boundary": "open"})
    assert everywhere.boundary == Boundary.all("open", 2)


def test_a_definition_says_what_the_data_cannot_and_no_more():
    spec = task_from_mapping({"name": "heat", "dimension": 1, "channels": ["u"], "boundary": "periodic"})
    assert spec.latent_spacing is None and spec.dt is None and not spec.steady
    fine, coarse = Grid.cell_centred((512,)), Grid.cell_centred((64,))
    assert spec.patch(fine) == spec.patch(coarse) == (1,)
    wide = replace(spec, latent_spacing=1 / 32)
    assert wide.patch(coarse) == (2,) and wide.patch(fine) == (8,)


def test_a_registered_task_is_found_and_cannot_change():
    spec = task_from_mapping({**yaml.safe_load(HEAT), "name": "heat_registered"})
    assert register(spec) is spec and task("heat_registered") is spec and spec in tasks()
    register(task_from_mapping({**yaml.safe_load(HEAT), "name": "heat_registered"}))
    with pytest.raises(UserError, match="already registered"):
        register(task_from_mapping({**yaml.safe_load(HEAT), "name": "heat_registered", "dt": 0.2}))


def test_an_unknown_task_names_the_nearest():
    with pytest.raises(UserError, match="did you mean 'burgers'"):
        task("burger")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"chanels": ["u"]}, "key 'chanels' is unknown; did you mean 'channels'"),
        ({"zzz": 1}, "key 'zzz' is unknown; use one of name, dimension"),
        ({"dimension": None}, "give dimension"),
        ({"dimension": "two"}, "dimension is 'two'; it should be a valid integer"),
        ({"dimension": 2.5}, "dimension is 2.5; it should be a valid integer"),
        ({"dimension": float("nan")}, "dimension is nan; it should be a finite number"),
        ({"history": float("inf")}, "history is inf; it should be a finite number"),
        ({"dt": float("nan")}, "dt is nan; give a positive time"),
        ({"latent_spacing": "fine"}, "latent_spacing is 'fine'; it should be a valid number"),
        ({"latent_spacing": -1.0}, "positive length"),
        ({"history": True}, "history is True; give a number"),
        ({"channels": "temperature"}, "channels is 'temperature'; it should be a valid list"),
        ({"channels": [{"name": "u", "transfrom": "log"}]}, "did you mean 'transform'"),
        ({"channels": [{"name": "u", "transform": "exp"}]}, "'exp'; it should be 'identity', 'log' or 'standardised'"),
        ({"channels": [{"transform": "log"}]}, "give channels.0.name"),
        ({"boundary": "perodic"}, "kind is 'perodic'; it should be 'periodic', 'value'"),
        ({"boundary": ["periodic"]}, "boundary names 1 axes"),
        ({"boundary": [["periodic", "open", "flux"], "open"]}, "should have at most 2 items"),
        ({"boundary": [{"value": [0.0]}, "open"]}, "give boundary.sides.0.0.kind"),
        ({"invariants": ["pressure"]}, "invariant of channel 'pressure'"),
        ({"invariants": [{"tolerance": 1}]}, "give invariants.0.channel"),
        ({"parameters": [1]}, "parameters.0 is 1; it should be a valid string"),
        ({"steady": True}, "a steady task has no dt"),
        ({"dt": -0.1}, "dt is -0.1; give a positive time"),
    ],
)
def test_a_wrong_mapping_names_the_key_and_the_remedy(change, message):
    with pytest.raises(UserError, match=message) as error:
        task_from_mapping({**yaml.safe_load(HEAT), **change})
    assert "heat" in str(error.value)
