"""`gridchase pause`, `resume`, `pin` and `release`: what people ask of a run on this node."""
