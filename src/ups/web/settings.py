"""What a server may be told: where it listens, who may ask, and how much of the machine a request may take."""

from __future__ import annotations

import ipaddress
from typing import Self

from pydantic import Field, model_validator

from ups.config.settings import Positive, PositiveFloat, Strict
from ups.errors import UserError

SHORTEST_TOKEN = 16


def is_local(host: str) -> bool:
    """Whether only this machine can reach it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class ServerSettings(Strict):
    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535, description="0 is one that is free.")
    token: str | None = Field(default=None, repr=False, description="What every request must bring, but /healthz.")
    names: tuple[str, ...] = Field(default=(), description="Under which clients know the server, besides its address.")
    body: Positive = Field(default=64 * 2**20, description="Bytes of a request; of an archive also when unpacked.")
    json_body: Positive = Field(
        default=8 * 2**20, description="Bytes of a request in JSON, which takes ten times that."
    )
    points: Positive = Field(default=2**18, description="Of a start, and of the points asked for.")
    axis: Positive = Field(default=4096, description="Points along one axis.")
    samples: Positive = Field(default=256, description="Starts in a request, and in a batch made of several.")
    members: Positive = 64
    steps: Positive = 10_000
    values: Positive = Field(default=2**24, description="Numbers in an answer.")
    json_values: Positive = Field(default=2**20, description="Numbers in an answer in JSON.")
    queue: Positive = Field(default=256, description="Requests that are waiting or computed at a time.")
    held: Positive = Field(default=2**31, description="Bytes of all those requests and their answers.")
    connections: Positive = 1024
    seconds: PositiveFloat = Field(default=120.0, description="For an answer, from when the request is there.")
    patience: PositiveFloat = Field(
        default=20.0, description="Seconds to wait for a client that sends or reads nothing."
    )

    @model_validator(mode="after")
    def _safe(self) -> Self:
        if self.token is None and not is_local(self.host):
            raise UserError(
                f"host {self.host} can be reached by others; set a token, such as "
                'UPS_TOKEN=$(python -c "import secrets; print(secrets.token_urlsafe())"), or leave host out'
            )
        if self.token is not None and (len(self.token) < SHORTEST_TOKEN or not self.token.isascii()):
            raise UserError(f"the token is too easy to guess; take {SHORTEST_TOKEN} ASCII characters or more")
        return self
