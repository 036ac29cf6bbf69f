"""The energy history: runs, decisions and quarter-hours of energy, carbon, cost and savings, in a database."""
