"""What travels on the bus, and the training side; training code imports its names from `gridchase`."""
