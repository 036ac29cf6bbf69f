"""HTTP of the controller: its health and metrics, and what people ask of runs."""
