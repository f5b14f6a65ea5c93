"""`fetch`: a model from the hub into a folder, through huggingface_hub with its cache and token."""

import argparse
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from app.engine.errors import ModelFileError, NotFoundError
from weights_tool.folder import TOKENIZER_FILES
from weights_tool.output import add_command

HELP = """\
Get a model's config, tokenizer and weights from the hub. It goes through huggingface_hub, so its cache and its login
are used (huggingface-cli login; HF_HOME, HF_TOKEN, HF_ENDPOINT), and a broken download is taken up again. Without --out
the files stay in that cache; the folder is printed either way. Weights in safetensors are preferred; if there are only
PyTorch's, they are fetched, and `convert` makes them readable.

Needs the extra:  pip install 'tabgpt[tools]'
"""


def add_fetch(commands: Any) -> None:
    """Add the command to argparse's `commands`."""
    parser = add_command(commands, "fetch", short="get a model from the hub", long=HELP)
    parser.add_argument("repository", metavar="OWNER/NAME")
    parser.add_argument("--revision", default="main", help="branch, tag or commit (main)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="copy the files there")
    parser.add_argument("--hub", metavar="URL", help="base address of another hub")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Do what the command line asks; return the exit status."""
    get = downloader(options.repository, options.revision, options.hub)
    paths = [get("config.json") or _missing(options.repository, "config.json")]
    paths += _weights(get, options.repository)
    tokenizer = [path for name in TOKENIZER_FILES if (path := get(name)) is not None]
    paths += tokenizer
    folder = paths[0].parent
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        for path in paths:
            shutil.copyfile(path, options.out / path.name)
        folder = options.out
    print(folder)
    return 0


def downloader(repository: str, revision: str, hub: str | None) -> Callable[[str], Path | None]:
    """Return a function that downloads a file and returns its path, or None if there is none.

    Raises ModelFileError without huggingface_hub; the function raises NotFoundError for an unknown repository or
    revision, and ModelFileError for whatever else fails.
    """
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import (
            EntryNotFoundError,
            HfHubHTTPError,
            HFValidationError,
            LocalEntryNotFoundError,
            RepositoryNotFoundError,
            RevisionNotFoundError,
        )
    except ImportError as error:
        raise ModelFileError("fetch needs huggingface_hub: pip install 'tabgpt[tools]'") from error

    def get(name: str) -> Path | None:
        try:
            return Path(hf_hub_download(repository, name, revision=revision, endpoint=hub and hub.rstrip("/")))
        except LocalEntryNotFoundError as error:
            raise ModelFileError(f"{name} of {repository} could not be fetched: {_first_line(error)}") from error
        except EntryNotFoundError:
            return None
        except (RepositoryNotFoundError, RevisionNotFoundError) as error:
            raise NotFoundError(f"{repository} at {revision} was not found: {_first_line(error)}") from error
        except (HfHubHTTPError, HFValidationError, OSError) as error:
            raise ModelFileError(f"{name} of {repository} could not be fetched: {_first_line(error)}") from error

    return get


def _weights(get: Callable[[str], Path | None], repository: str) -> list[Path]:
    for whole in ("model.safetensors", "pytorch_model.bin"):
        if path := get(whole):
            return [path]
        if index := get(f"{whole}.index.json"):
            names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
            return [index, *(get(name) or _missing(repository, name) for name in names)]
    return [_missing(repository, "model.safetensors")]


def _missing(repository: str, name: str) -> Path:
    raise NotFoundError(f"{repository} has no {name}, so it is no model that can be used here.")


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:300]
