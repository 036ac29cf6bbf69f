"""The ids of elements whose text or widths change while a page is open: pages and the event stream share them."""

from typing import Final, Literal
from urllib.parse import quote

from controller.web.live.site_state import GpuKey

GpuPart = Literal["drawn", "limit", "power", "power-limit", "why", "bar"]
"""`drawn` and `limit` stand beside each other in a tile, `power` and `power-limit` in the columns of a table."""
_KIND: Final = "gpu"


def gpu_element_id(key: GpuKey, part: GpuPart) -> str:
    """Return the id of the element that shows a part of a GPU: one for each GPU and part, whatever their names."""
    return "/".join((_KIND, quote(key.node, safe=""), quote(key.gpu_uuid, safe=""), part))


SITE_POWER: Final = "site/power"
"""What all GPUs draw together: the number; its unit, and the bar of it, have ids of their own."""
SITE_POWER_UNIT: Final = "site/power-unit"
SITE_BAR: Final = "site/bar"
SITE_LIMITS: Final = "site/limits"
"""The sum of all power limits, and of what they were before."""
