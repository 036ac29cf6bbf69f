"""The shell: one process per GPU node that measures, decides, writes power limits and gives them back."""
