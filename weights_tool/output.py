"""A folder that a command writes a model into."""

import argparse
from pathlib import Path
from typing import Any

from app.engine.errors import ModelFileError


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add --out, --max-file-mb and --force."""
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write; made if need be")
    parser.add_argument(
        "--max-file-mb", type=positive, metavar="MB", help="share the weights out to files of at most so many megabytes"
    )
    parser.add_argument("--force", action="store_true", help="replace a model that is already in DIR")


def max_bytes(options: argparse.Namespace) -> int | None:
    """Return what --max-file-mb says, in bytes."""
    return None if options.max_file_mb is None else int(options.max_file_mb * 1e6)


def old_model(folder: Path, *, force: bool) -> list[Path]:
    """Make the folder, and return the files of a model that is in it and has to go. Raises ModelFileError unless
    `force`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    old = [path for path in folder.iterdir() if path.name == "config.json" or ".safetensors" in path.name]
    if old and not force:
        raise ModelFileError(f"{folder} already holds a model ({old[0].name}). Choose another --out, or add --force.")
    return old


def positive(text: str) -> float:
    """Read a number of megabytes, for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of megabytes above 0")
    return value


def add_command(commands: Any, name: str, *, short: str, long: str) -> argparse.ArgumentParser:
    """Add a command with a description that keeps its lines."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=short, description=long, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    return parser
