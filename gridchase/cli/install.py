"""The command that installs what is missing, from where this gridchase came: no index may have it."""

import json
import shlex
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname


def install_command() -> str:
    """Return the command that installs the controller, and all that it needs, into an environment."""
    try:
        return command_for(distribution("gridchase").read_text("direct_url.json"))
    except (PackageNotFoundError, OSError, ValueError):
        return command_for(None)


def command_for(direct_url: str | None) -> str:
    """Return the command for a distribution with this `direct_url.json`; None: it came from an index.

    Raises:
        ValueError: that is no such file.

    >>> command_for('{"url": "file:///home/ada/gridchase", "dir_info": {}}')
    "pip install '/home/ada/gridchase[controller]' /home/ada/gridchase/controller"
    >>> command_for(None)
    "pip install 'gridchase[controller]'"
    """
    origin = json.loads(direct_url or "{}")
    url = str(origin.get("url", ""))
    path = Path(url2pathname(urlsplit(url).path)) if url.startswith("file:") else None
    options = [] if path is None or "dir_info" in origin else ["--find-links", str(path.parent)]
    wanted = ["gridchase[controller]"]
    if path is not None and "dir_info" in origin:
        wanted = [f"{path}[controller]", str(path / "controller")]
    elif vcs := origin.get("vcs_info"):
        source = f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
        wanted = [f"gridchase[controller] @ {source}", f"gridchase-controller @ {source}#subdirectory=controller"]
    return shlex.join(["pip", "install", *options, *wanted])
