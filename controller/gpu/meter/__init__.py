"""The meter of a GPU: energy that physics allows, power of moments, and what a run is told of both."""
