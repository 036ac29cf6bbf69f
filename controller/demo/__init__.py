"""The demo: a day of a real grid in a minute, with a simulated GPU, a real training process, and the real rest."""
