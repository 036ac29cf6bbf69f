"""The login name of this process, which names its user on the bus where the broker knows none."""

import getpass
import os

from publishers.messages.topics import is_label


def read_login_name() -> str:
    """Return the login name, or the numeric user id where the system has no name for it, as in many containers."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError, ImportError):
        name = ""
    return name if is_label(name) else str(os.getuid())
