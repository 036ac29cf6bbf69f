"""`gridchase replay`: policies evaluated on files."""
