"""Checkpoints: whole or absent, verified before use, and free of pickles."""

from ups.checkpoint.files import CARD as CARD
from ups.checkpoint.files import FORMAT as FORMAT
from ups.checkpoint.files import MANIFEST as MANIFEST
from ups.checkpoint.files import WEIGHTS as WEIGHTS
from ups.checkpoint.files import Manifest as Manifest
from ups.checkpoint.files import entries_of as entries_of
from ups.checkpoint.files import fill as fill
from ups.checkpoint.files import find as find
from ups.checkpoint.files import is_one as is_one
from ups.checkpoint.files import load as load
from ups.checkpoint.files import name_of as name_of
from ups.checkpoint.files import newest as newest
from ups.checkpoint.files import peek as peek
from ups.checkpoint.files import point as point
from ups.checkpoint.files import prune as prune
from ups.checkpoint.files import recover as recover
from ups.checkpoint.files import steps as steps
