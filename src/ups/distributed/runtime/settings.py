"""What a run can be told about where and how it is computed."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ups.config.settings import Positive, PositiveFloat, Strict
from ups.errors import UserError


class WandbConfig(Strict):
    """Of Weights & Biases, where `tracking` names it."""

    mode: Literal["online", "offline"] = Field(
        default="online", description="send while it runs, or keep in RUN/wandb for `ups track sync RUN`"
    )
    project: Annotated[str, Field(pattern=r"^([\w.-]+/)?[\w.-]+$")] = Field(
        default="ups", description="PROJECT or TEAM/PROJECT that runs belong to"
    )


class RuntimeConfig(Strict):
    """Where and how a run is computed; nothing here changes what it computes beyond rounding."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: Positive | None = Field(
        default=None, description="CPU threads a rank; OMP_NUM_THREADS, else the cores shared out, if not given"
    )
    strategy: Literal["ddp", "fsdp2", "hsdp"] = "ddp"
    shard: Positive | None = Field(
        default=None, description="hsdp: ranks that share one copy; those of a node if not given"
    )
    micro_batch: Positive | None = Field(
        default=None, description="samples of a task a rank takes at once; all if not given"
    )
    checkpoint_activations: bool = Field(
        default=False, description="recompute blocks in the backward pass to save memory"
    )
    compile: bool = Field(default=False, description="torch.compile the model, part by part, and the loss")
    capture: Literal["auto", "on", "off"] = Field(
        default="auto", description="replay steps as CUDA graphs: where possible, or else fail, or never"
    )
    placement: Literal["auto", "device", "mapped"] = Field(
        default="auto",
        description="where training fields are: on every GPU where they fit, else fail, or in mapped files",
    )
    tf32: bool = Field(
        default=True, description="let a GPU round factors of float32 products to 10 bits: much faster, Muon above all"
    )
    deterministic: bool = Field(default=False, description="only operations that repeat bit for bit, at some speed")
    deadline: PositiveFloat = Field(
        default=12.0, description="seconds without a sign of life in a step before it hangs"
    )
    restarts: Annotated[int, Field(ge=0)] = Field(
        default=3, description="crashes in a row without progress, then give up"
    )
    disk_patience: PositiveFloat = Field(
        default=3600.0, description="seconds a disk may refuse checkpoints, while training goes on, then give up"
    )
    replica_check_every: Positive = Field(default=100, description="steps between comparisons of the ranks' parameters")
    tracking: list[Literal["tensorboard", "wandb"]] = Field(
        default=[], description="where events go besides events.jsonl; each is an optional extra of that name"
    )
    wandb: WandbConfig = WandbConfig()

    def sharing(self, ranks: int, node: int) -> int:
        """How many ranks share one copy of the parameters, of so many and so many a node."""
        shard = {"ddp": 1, "fsdp2": ranks, "hsdp": self.shard or node}[self.strategy]
        if ranks % shard:
            raise UserError(
                f"runtime.shard is {shard}, which does not divide the {ranks} ranks; choose a divisor of {ranks}"
            )
        return shard
