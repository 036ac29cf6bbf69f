"""Who may write and read which topic at a site: the table of docs/safety.md, which is tested cell by cell."""

from dataclasses import dataclass
from typing import Final, Literal

ROLES: Final = ("training", "node", "policy", "dashboard", "web", "operator")
Role = Literal["training", "node", "policy", "dashboard", "web", "operator"]
Scope = Literal["none", "own", "any"]
OWNER: Final[dict[str, str]] = {"training": "user", "node": "node"}
"""Which name in a topic makes it a role's own; the other roles own none."""


@dataclass(frozen=True, slots=True)
class Access:
    """What a role may do on a topic: write or read none, its own (its user, its node) or any."""

    write: Scope = "none"
    read: Scope = "none"

    def __str__(self) -> str:
        """Return the cell of the table."""
        verbs = [verb if scope == "any" else f"{verb} own" for verb, scope in self._scopes() if scope != "none"]
        return ", ".join(verbs) or "none"

    def _scopes(self) -> tuple[tuple[str, Scope], ...]:
        return ("write", self.write), ("read", self.read)


NONE, READ, WRITE, READ_WRITE = Access(), Access(read="any"), Access(write="any"), Access("any", "any")
READ_OWN, WRITE_OWN, READ_WRITE_OWN, WRITE_OWN_READ = (
    Access(read="own"),
    Access("own"),
    Access("own", "own"),
    Access("own", "any"),
)
_RANK: Final = "host/<boot_id>/user/<user>/job/<job>/run/<run>/rank"
_RUN: Final = "user/<user>/job/<job>/run/<run>"
RULES: Final[dict[str, tuple[Access, Access, Access, Access, Access, Access]]] = {
    f"{_RANK}/0/status": (READ_WRITE_OWN, READ_WRITE, READ, NONE, NONE, NONE),
    f"{_RANK}/<rank>/status": (READ_WRITE_OWN, READ_WRITE, NONE, NONE, NONE, NONE),
    f"{_RANK}/<rank>/iterations": (WRITE_OWN, READ, NONE, NONE, NONE, NONE),
    f"{_RANK}/<rank>/<other>": (NONE, NONE, NONE, NONE, NONE, NONE),
    f"{_RUN}/metric": (WRITE_OWN, NONE, READ, NONE, NONE, NONE),
    f"{_RUN}/trial/request": (WRITE_OWN, NONE, READ, NONE, NONE, NONE),
    f"{_RUN}/trial/times": (WRITE_OWN, NONE, READ, NONE, NONE, NONE),
    f"{_RUN}/trial/failure": (WRITE_OWN, NONE, READ, NONE, NONE, NONE),
    f"{_RUN}/trial/answer": (READ_OWN, NONE, READ_WRITE, NONE, NONE, NONE),
    f"{_RUN}/command": (READ_OWN, WRITE, WRITE, NONE, NONE, NONE),
    f"{_RUN}/notice": (READ_OWN, WRITE, NONE, NONE, NONE, NONE),
    f"{_RUN}/profile": (READ_OWN, WRITE, NONE, READ, READ, NONE),
    f"{_RUN}/schedule": (READ_OWN, WRITE, NONE, READ, READ, NONE),
    f"{_RUN}/energy": (READ_OWN, WRITE, READ, READ, READ, NONE),
    f"{_RUN}/node/<node>/profile": (READ_OWN, WRITE_OWN_READ, NONE, READ, NONE, NONE),
    f"{_RUN}/node/<node>/energy": (READ_OWN, WRITE_OWN_READ, NONE, READ, READ, NONE),
    f"{_RUN}/set": (NONE, READ, NONE, NONE, WRITE, WRITE),
    f"{_RUN}/set/result": (NONE, WRITE, NONE, NONE, READ, READ),
    "user/<user>/job/<job>/posterior": (READ_OWN, NONE, WRITE, READ, READ, NONE),
    "node/<node>/status": (NONE, WRITE_OWN_READ, NONE, READ, READ, NONE),
    "node/<node>/gpu/<uuid>/energy": (NONE, READ_WRITE_OWN, NONE, READ, READ, NONE),
    "node/<node>/gpu/<uuid>/limit": (NONE, READ_WRITE_OWN, NONE, READ, READ, NONE),
    "node/<node>/gpu/<uuid>/set": (NONE, READ_OWN, NONE, NONE, WRITE, WRITE),
    "node/<node>/gpu/<uuid>/set/result": (NONE, WRITE_OWN, NONE, NONE, READ, READ),
    "node/<node>/plan/<user>/<job>/<run>": (NONE, WRITE_OWN_READ, NONE, NONE, NONE, NONE),
    "grid/<zone>/carbon": (NONE, READ_WRITE, NONE, READ, READ, NONE),
    "grid/<zone>/price": (NONE, READ_WRITE, NONE, READ, READ, NONE),
    "user/<user>/probe/<random>": (NONE, NONE, NONE, NONE, NONE, NONE),
    "node/<node>/probe/<random>": (NONE, NONE, NONE, NONE, NONE, NONE),
    "probe/<random>": (NONE, NONE, NONE, NONE, NONE, NONE),
}
"""By topic below the root: what each role may do, in the order of `ROLES`."""


def access(role: Role, topic: str) -> Access:
    """Return what a role may do on a topic of the table."""
    return RULES[topic][ROLES.index(role)]


def table() -> list[str]:
    """Return the table as lines of Markdown."""
    rows = [f"| `{topic}` | {' | '.join(map(str, cells))} |" for topic, cells in RULES.items()]
    return [f"| topic below the root | {' | '.join(ROLES)} |", f"|{'---|' * (len(ROLES) + 1)}", *rows]
