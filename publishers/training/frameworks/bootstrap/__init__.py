"""What `gridchase run` puts on `PYTHONPATH`: a `sitecustomize` that every Python below it runs before its script."""
