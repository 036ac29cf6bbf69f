"""`gridchase pause` and `gridchase resume`: what people ask of a run on this node."""
