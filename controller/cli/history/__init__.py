"""`gridchase report` and `gridchase web`: what was used and saved, of a node and of a site."""
