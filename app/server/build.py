"""Writes the site as one folder that any static host can serve, under any path."""

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from app.server.errors import SetupError
from app.server.site import FILE_LIST, SERVICE_WORKER, Site

MARKER = ".tabgpt-build.json"
# Without it GitHub Pages runs Jekyll over the tree, which drops some names.
NO_JEKYLL = ".nojekyll"
# Written last, so that a page never names something that is not there yet.
LAST = ("index.html", SERVICE_WORKER, FILE_LIST, "site.json")


def build(site: Site, folder: Path) -> int:
    """Write the site into `folder` and return its size in bytes.

    An earlier build there is brought up to date: files that are no longer part of it go, files of others stay. Raises
    SetupError where the folder holds anything but an earlier build, before anything is touched.
    """
    try:
        earlier = _earlier(folder)
        files = site.files()
        folder.mkdir(parents=True, exist_ok=True)
        # Until all is written the marker names both, so that a broken-off build can be told, and run again.
        _write_marker(folder, {*earlier, *files, NO_JEKYLL})
        (folder / NO_JEKYLL).write_bytes(b"")
        for path in sorted(files, key=lambda path: (path in LAST, path)):
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            part = target.with_name(target.name + ".part")
            shutil.copyfile(files[path], part)
            part.replace(target)
        _remove(folder, earlier - {*files, NO_JEKYLL})
        _write_marker(folder, {*files, NO_JEKYLL})
        return sum((folder / path).stat().st_size for path in files)
    except OSError as error:
        raise SetupError(
            f"The site could not be written to {folder}: {error}. Choose a folder that can be written, on a disk with "
            "60 MB free."
        ) from error


def _earlier(folder: Path) -> set[str]:
    if not folder.exists():
        return set()
    if not folder.is_dir():
        raise SetupError(f"{folder} is a file. Name a folder for the build, which may not exist yet.")
    marker = folder / MARKER
    if marker.is_file():
        try:
            return {str(path) for path in json.loads(marker.read_bytes())["files"]}
        except (ValueError, KeyError, TypeError) as error:
            raise SetupError(f"{marker} is damaged. Remove {folder}, or name another one.") from error
    if any(folder.iterdir()):
        raise SetupError(
            f"{folder} is not empty and not an earlier build, so nothing was written. Name an empty or a new folder."
        )
    return set()


def _write_marker(folder: Path, paths: Iterable[str]) -> None:
    part = folder / f"{MARKER}.part"
    part.write_text(json.dumps({"files": sorted(paths)}, indent=1) + "\n", encoding="utf-8")
    part.replace(folder / MARKER)


def _remove(folder: Path, paths: Iterable[str]) -> None:
    for path in paths:
        target = folder / path
        # A marker that someone edited must not reach outside the build.
        if folder.resolve() not in target.resolve().parents:
            continue
        target.unlink(missing_ok=True)
        for parent in target.parents:
            if parent == folder or not parent.is_dir() or any(os.scandir(parent)):
                break
            parent.rmdir()
