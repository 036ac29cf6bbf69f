"""The controller: one process per GPU node that measures, decides, writes power limits and restores them."""
