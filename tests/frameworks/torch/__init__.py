"""PyTorch itself: its optimizers, its loaders, several ranks."""
