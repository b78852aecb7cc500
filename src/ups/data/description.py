"""stub until the real one is merged"""
from __future__ import annotations
import json
import torch
from ups.data.header import Header
from ups.fields import Boundary, Grid, Side

def to_json(h: Header) -> str:
    return json.dumps(dict(task=h.task, channels=h.channels, pos=[p.tolist() for p in h.grid.positions], ext=h.grid.extent,
      times=h.times.tolist(), b=[[[s.kind, s.value] for s in pair] for pair in h.boundary.sides], parameters=dict(h.parameters),
      static=h.static, forcings=dict(h.forcings), masked=h.masked, dtype=str(h.dtype).split(".")[1], licence=h.licence, notes=dict(h.notes)))

def from_json(t: str) -> Header:
    d = json.loads(t)
    return Header(d["task"], tuple(d["channels"]), Grid(tuple(torch.tensor(p, dtype=torch.float64) for p in d["pos"]), tuple(tuple(e) for e in d["ext"])),
      torch.tensor(d["times"], dtype=torch.float64), Boundary(tuple(tuple(Side(k, tuple(v)) for k, v in pair) for pair in d["b"])),
      d["parameters"], tuple(d["static"]), d["forcings"], d["masked"], getattr(torch, d["dtype"]), d["licence"], d["notes"])
