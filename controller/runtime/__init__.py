"""What every process of ours stands on: its clock, and how it is stopped."""
