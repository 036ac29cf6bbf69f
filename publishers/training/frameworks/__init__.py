"""Callbacks of training frameworks: one file each, imported only where that framework is there."""
