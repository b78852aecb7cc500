"""A report of synthetic waves, fronts and porous flow: every "prediction" is the truth, disturbed.

To look at it, with the predictors of your choice beside persistence (stages first, the last of them is the model):

    python tests/report/demo_report.py report.html --stages operator corrector --compared fno unet
"""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from ups.evaluation.labels import labels
from ups.evaluation.solver import Coarse, SolverComparison
from ups.metrics import bootstrap_interval, max_error, nrmse, power_spectrum, vrmse
from ups.report.contents import Curve, Report, Sample, TaskPage
from ups.report.html import write_report
from ups.report.legend import Legend
from ups.report.verdict import summary_rows

TIMES = np.linspace(0, 2, 41)
LEGEND = Legend(labels(["operator"], ["fno"]), "operator")


def _metrics(samples, legend, steady):
    views = {"one_step": slice(0, 1)} if steady else {"one_step": slice(1, 2), "rollout": slice(1, None)}
    metrics = {}
    for view, frames in views.items():
        metrics[view] = {}
        for name, metric in (("nrmse", nrmse), ("vrmse", vrmse), ("max_error", max_error)):
            truth = _tensors(samples, "truth")
            found = {w: metric(_tensors(samples, w), truth)[:, frames].mean((1, 2)) for w in legend.names}
            ends = {w: [float(end) for end in bootstrap_interval(values, 0)] for w, values in found.items()}
            entry = {w: float(values.mean()) for w, values in found.items()}
            own = {"model": entry[legend.model], "ci95": ends[legend.model], "ci95_of": ends}
            metrics[view][name] = entry | own
    return metrics


def _tensors(samples, name):
    arrays = [sample.truth if name == "truth" else sample.predictions[name] for sample in samples]
    return torch.from_numpy(np.stack(arrays))


def _growth(times, samples, name):
    return times, nrmse(_tensors(samples, name), _tensors(samples, "truth")).mean((0, 2)).numpy()


def _spectra(samples, names):
    spectra = {}
    for name in ("truth", *names):
        k, power = power_spectrum(_tensors(samples, name)[:, -1:])
        spectra[name] = (k.numpy(), power.mean((0, 1, 3)).numpy())
    return spectra


def _page(name, title, equation, steady, channels, axes, times, samples, solver=None):
    """With the predictors of `LEGEND`; `with_predictors` gives a page others."""
    page = TaskPage(LEGEND, name, title, equation, steady, channels, axes, times, samples, {}, {}, {}, solver)
    return _measured(page)


def _measured(page):
    names = page.legend.names
    growth = {} if page.steady else {name: _growth(page.times, page.samples, name) for name in names}
    metrics = _metrics(page.samples, page.legend, page.steady)
    return replace(page, growth=growth, spectra=_spectra(page.samples, page.legend.pictured), metrics=metrics)


def with_predictors(page, legend):
    """The page of other predictors: those it has not are the FNO's errors, grown or shrunk and moved along x."""
    samples = []
    for sample in page.samples:
        error = sample.predictions["fno"] - sample.truth
        others = {
            name: sample.truth + (0.4 + 0.5 * place) * np.roll(error, 5 * place, 1)
            for place, name in enumerate(legend.names)
        }
        known = {name: values for name, values in sample.predictions.items() if name in legend.names}
        samples.append(replace(sample, predictions=others | known))
    return _measured(replace(page, legend=legend, samples=samples))


def advection_page(seed=0, count=4):
    rng = np.random.default_rng(seed)
    x = (np.arange(128) + 0.5) / 128
    samples = []
    for index in range(count):
        speed = (0.1, 0.4, 1.0)[index % 3]
        k = np.arange(1, 33)
        amplitudes, phases = rng.standard_normal(32) / k**1.5, rng.uniform(0, 2 * np.pi, 32)

        def wave(shift, damping=0.0, a=amplitudes, k=k, p=phases):
            angle = 2 * np.pi * k * (x[:, None] - shift[:, None, None]) + p
            return (a * np.exp(-damping * k**2) * np.sin(angle)).sum(-1)[..., None]

        truth = wave(speed * TIMES)
        ups = wave(speed * TIMES * 1.003 + 0.0007 * TIMES)
        fno = wave(speed * TIMES * 0.995, 0.0015 * TIMES[:, None, None])
        predictions = {"operator": ups, "fno": fno, "persistence": np.broadcast_to(truth[:1], truth.shape)}
        samples.append(Sample(f"{index}, β = {speed}", truth, predictions))
    rows = ((32, 0.21, 0.0006), (64, 0.055, 0.0012), (128, 0.013, 0.0031), (256, 0.003, 0.009))
    solver = SolverComparison(tuple(Coarse(*row) for row in rows), 0.02, 0.0009, 2, 81234.0)
    return _page(
        "advection",
        "Advection",
        "∂ₜu + β ∂ₓu = 0,  β ∈ {0.1, 0.4, 1},  periodic on [0, 1]",
        False,
        ("u",),
        (x,),
        TIMES,
        samples,
        solver,
    )


def burgers_page(seed=1, count=4):
    """The exact travelling front u = c − a tanh(a (x − ct) / 2ν), a few of them."""
    rng = np.random.default_rng(seed)
    x = -1 + 2 * (np.arange(128) + 0.5) / 128
    samples = []
    for index in range(count):
        nu, c, a = (0.01, 0.02)[index % 2], rng.uniform(-0.15, 0.15), rng.uniform(0.3, 0.9)

        def front(speed, width, c=c, a=a, nu=nu):
            return (c - a * np.tanh(a * (x - speed * TIMES[:, None]) / (2 * nu * width)))[..., None]

        truth = front(c, 1 + 3 / (1 + 4 * TIMES[:, None]))
        ups = front(c + 0.006, 1 + 3 / (1 + 4 * TIMES[:, None]))
        fno = front(c + 0.004, 1.01 + 3 / (1 + 4 * TIMES[:, None]))
        predictions = {"operator": ups, "fno": fno, "persistence": np.broadcast_to(truth[:1], truth.shape)}
        samples.append(Sample(f"{index}, ν = {nu}", truth, predictions))
    solver = SolverComparison((Coarse(64, 0.03, 0.002), Coarse(128, 0.008, 0.006)), 0.02, 0.009, 1, None)
    return _page(
        "burgers",
        "Burgers",
        "∂ₜu + ∂ₓ(u²/2) = (ν/π) ∂ₓₓu,  ν ∈ {0.01, 0.02}",
        False,
        ("u",),
        (x,),
        TIMES,
        samples,
        solver,
    )


def _smooth(rng, points, decay):
    k = np.fft.fftfreq(points, 1 / points)
    amplitude = (1 + k[:, None] ** 2 + k[None] ** 2) ** (-decay / 2)
    return np.real(np.fft.ifft2(amplitude * np.fft.fft2(rng.standard_normal((points, points)))))


def darcy_page(seed=2, count=6):
    rng = np.random.default_rng(seed)
    x = (np.arange(64) + 0.5) / 64
    bump = np.sin(np.pi * x)[:, None] * np.sin(np.pi * x)[None]
    samples = []
    for index in range(count):
        noise = _smooth(rng, 64, 3.0)
        coefficient = np.where(noise > 0, 1.0, 0.1)
        truth = bump * (1 + 0.4 * _smooth(rng, 64, 3.5) / 0.02 * 0.2)
        ups = truth + 0.02 * bump * _smooth(rng, 64, 2.0) * 8
        fno = truth + 0.03 * bump * _smooth(rng, 64, 2.0) * 8
        predictions = {"operator": ups, "fno": fno, "persistence": 0.9 * bump}
        fields = {model: values[None, ..., None] for model, values in predictions.items()}
        samples.append(Sample(f"test {index}", truth[None, ..., None], fields, {"coefficient a(x, y)": coefficient}))
    return _page(
        "darcy", "Darcy flow", "−∇·(a(x, y) ∇u) = 1,  u = 0 on the boundary", True, ("u",), (x, x), np.zeros(1), samples
    )


def vortex_page(seed=3, count=2):
    """Two channels of decaying, drifting 2D waves: what a transient 2D task sends."""
    rng = np.random.default_rng(seed)
    x = (np.arange(48) + 0.5) / 48
    y = 0.5 * x
    times = np.linspace(0, 1, 11)
    t, gx, gy = times[:, None, None], x[:, None], y[None]
    samples = []
    for index in range(count):
        phase = rng.uniform(0, 6)

        def flow(speed, phase=phase):
            ripple = np.sin(2 * np.pi * (2 * gx - speed * t) + phase) * np.cos(4 * np.pi * gy)
            return np.stack([np.exp(-t) * ripple, 1 + 0.3 * ripple**2], -1)

        predictions = {"operator": flow(1.01), "fno": flow(1.03), "persistence": np.repeat(flow(1.0)[:1], 11, 0)}
        samples.append(Sample(f"{index}", flow(1.0), predictions))
    return _page(
        "vortex", "Drifting ripples", "∂ₜu + c ∂ₓu = −u", False, ("velocity", "density"), (x, y), times, samples
    )


def cube_page(seed=5, count=2):
    """Two channels of drifting waves in a box that is not a cube, whose planes through the middle differ."""
    rng = np.random.default_rng(seed)
    x, y, z = (np.arange(24) + 0.5) / 24, (np.arange(16) + 0.5) / 24, (np.arange(12) + 0.5) / 24
    times = np.linspace(0, 1, 6)
    t, gx, gy, gz = np.meshgrid(times, x, y, z, indexing="ij")
    samples = []
    for index in range(count):
        phase = rng.uniform(0, 6)

        def flow(speed, phase=phase):
            ripple = np.sin(2 * np.pi * (2 * gx - speed * t) + phase) * np.cos(3 * np.pi * gy)
            return np.stack([ripple * np.cos(4 * np.pi * gz), gz + 0.3 * ripple**2], -1)

        predictions = {"operator": flow(1.02), "fno": flow(1.05), "persistence": np.repeat(flow(1.0)[:1], 6, 0)}
        samples.append(Sample(f"{index}", flow(1.0), predictions))
    return _page(
        "box", "Drifting ripples in a box", "∂ₜu + c ∂ₓu = 0", False, ("u", "density"), (x, y, z), times, samples
    )


def _curves(legend):
    rng = np.random.default_rng(4)
    trainings = [("all tasks", name, 0.06, 2400) for name in legend.pictured if name not in legend.compared]
    trainings += [(task, name, 0.1, 900) for name in legend.compared for task in ("advection", "burgers", "darcy")]
    curves = []
    for task, name, rate, steps in trainings:
        step = np.arange(0, steps, 5.0)
        trend = 0.9 * (1 + step / 40) ** -0.8 * (1 + len(curves) * 0.1)
        loss = trend * np.exp(0.25 * rng.standard_normal(len(step)))
        validation = [(int(s), float((0.8 + 0.1 * len(curves)) * (1 + s / 40) ** -0.8)) for s in step[::40]]
        curves.append(Curve(f"{legend.title(name)}, {task}", step, rate * step, loss, validation, name))
    return curves


def report_of(tasks):
    legend = tasks[0].legend
    return Report(
        name="quickstart",
        command="ups run quickstart",
        config_yaml="name: quickstart\nseed: 0\noperator:\n  width: 48\n  blocks: 4\ntraining:\n  steps: 2400\n",
        environment={
            "ups": "0.1.0",
            "python": "3.11.9",
            "torch": "2.13.0",
            "device": "cpu, 2 threads",
            "commit": "961fd6a",
        },
        legend=legend,
        summary=summary_rows(tasks),
        tasks=tasks,
        curves=_curves(legend),
        seconds={"data": 61.0, "train": 262.0, "evaluate": 18.4},
        notes=[
            "Medians and all metrics are in the tasks' sections.",
            "The FNO's number of steps follows from its measured rate.",
        ],
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--stages", nargs="+", default=["operator"])
    parser.add_argument("--compared", nargs="*", default=["fno"])
    arguments = parser.parse_args()
    chosen = Legend(labels(arguments.stages, arguments.compared), arguments.stages[-1])
    pages = [advection_page(), burgers_page(), darcy_page(), vortex_page(), cube_page()]
    write_report(report_of([with_predictors(page, chosen) for page in pages]), arguments.path)
