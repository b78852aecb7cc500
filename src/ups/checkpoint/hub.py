"""Models on Hugging Face: `hf://owner/name` or `hf://owner/name@revision`, brought here once and kept in its own cache.

What is published is an export's files, in one commit. Tokens are the library's business alone: it reads HF_TOKEN, or
what `hf auth login` stored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ups.checkpoint.files import CARD, MANIFEST, WEIGHTS
from ups.errors import UserError

_ADDRESS = re.compile(r"hf:/+([^/@]+/[^/@]+?)/?(?:@([^@]+))?")  # a Path writes hf:/owner/name
_NAME = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)


def is_on_hub(path: str | Path) -> bool:
    return str(path).startswith("hf:/")


def fetch(path: str | Path) -> Path:
    """The folder where the model of an address is now."""
    found = _ADDRESS.fullmatch(str(path))
    if found is None:
        raise UserError(f"{path} is no address of a model; write hf://owner/name, or hf://owner/name@revision")
    repository, revision = found.groups()
    with _understood(f"hf://{repository}") as hub:
        folder = Path(hub.snapshot_download(repository, revision=revision, allow_patterns=[MANIFEST, WEIGHTS, CARD]))
    if not (folder / MANIFEST).is_file():
        raise UserError(f"hf://{repository} holds no model of ups ({MANIFEST} is not there); name another one")
    return folder


def pinned(path: str | Path, folder: Path) -> str:
    """The address with the revision that `fetch` brought: the cache names a snapshot's folder by it."""
    found = _ADDRESS.fullmatch(str(path))
    assert found is not None, path
    return f"hf://{found[1]}@{folder.name}"


def publish(folder: Path, name: str, private: bool = False) -> str:
    """Put an export's files into the repository `owner/name`, which is made if it is not there; its address."""
    if not _NAME.fullmatch(name):
        raise UserError(f"{name!r} is no name of a model on Hugging Face; write owner/name")
    with _understood(name) as hub:
        if hub.get_token() is None:
            raise UserError("publishing needs a token of Hugging Face; log in with `hf auth login`, or set HF_TOKEN")
        api = hub.HfApi(library_name="universal-physics-stack")
        api.create_repo(name, private=private, exist_ok=True)
        added = [hub.CommitOperationAdd(file, str(folder / file)) for file in (MANIFEST, WEIGHTS, CARD)]
        api.create_commit(name, added, commit_message="A model of ups")
    return f"hf://{name}"


@contextmanager
def _understood(what: str) -> Iterator[Any]:
    """Hugging Face's library, its errors turned into a sentence."""
    try:
        import huggingface_hub as hub  # pyright: ignore[reportMissingImports]
        from huggingface_hub import errors  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UserError(
            f"{what}: models on Hugging Face need huggingface_hub; pip install 'universal-physics-stack[hub]'"
        ) from error
    try:
        yield hub
    except errors.RevisionNotFoundError as error:
        raise UserError(f"{what} has no such revision; leave it out, or name another one") from error
    except errors.RepositoryNotFoundError as error:  # what one may not see is said not to be there
        raise UserError(
            f"Hugging Face has no {what} that you may use; check the name, or log in with `hf auth login`"
        ) from error
    except errors.HFValidationError as error:
        raise UserError(f"{what} is no name that Hugging Face allows ({error}); check it") from error
    except (errors.HTTPError, OSError) as error:  # the first: of the library that it asks with
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status in (401, 403):
            raise UserError(
                f"Hugging Face does not let you into {what} with this token; log in again with `hf auth login`, or "
                "set an HF_TOKEN that may"
            ) from error
        said = str(error).strip().partition("\n")[0]
        raise UserError(f"{what}: Hugging Face cannot be asked ({said[:200]}); try again when it can") from error
