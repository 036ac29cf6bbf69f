"""What a training is told of its run: notices, the summary, live values, trackers, a file of emissions."""
