"""Files: private to their owner, and on disks that may hang."""
