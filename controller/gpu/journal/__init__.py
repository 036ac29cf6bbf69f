"""The journal of prior power limits: its entries, its format, and how it is stored."""
