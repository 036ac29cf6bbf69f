"""Small trainings on the CPU, one script a framework; each tells what it really did, whoever else counts."""
