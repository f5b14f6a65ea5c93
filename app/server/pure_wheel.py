"""Wheels for the page, made of packages that are installed here, without their compiled parts.

Chat templates need Jinja2 and MarkupSafe in the page. Pyodide's own wheels of them are on its CDN, but not in the PyPI
wheel that stands in for it where that can't be reached. Both work without compiled code, so the page gets their Python
files as pip installed them beside the server.
"""

from importlib.metadata import PackageNotFoundError, distribution

from app.server.errors import SetupError
from app.server.wheel import zip_wheel

CHAT = ("jinja2", "markupsafe")
"""What the page loads for a model that chats."""


def pure_wheel(name: str) -> tuple[str, bytes]:
    """Return the file name and the contents of a wheel with the Python files of an installed distribution.

    The same files give the same bytes. Raises SetupError if it is not installed.
    """
    try:
        found = distribution(name)
    except PackageNotFoundError as error:
        raise SetupError(
            f"The Python package {name} is not installed, so tabgpt is incomplete: pip install ."
        ) from error
    members = {}
    for path in sorted(found.files or [], key=str):
        text = path.as_posix()
        if text.startswith(f"{name}/") and path.suffix == ".py":
            members[text] = path.read_binary()
    if f"{name}/__init__.py" not in members:
        raise SetupError(
            f"The Python package {name} lacks its files. Install it again: pip install --force-reinstall {name}"
        )
    version, info = found.version, f"{name}-{found.version}.dist-info"
    members[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode()
    for path in found.files or []:
        if path.name.lower().startswith("license"):
            members[f"{info}/licenses/{path.name}"] = path.read_binary()
    return f"{name}-{version}-py3-none-any.whl", zip_wheel(info, members)
