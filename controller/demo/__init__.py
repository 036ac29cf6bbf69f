"""The demos: a day of a real grid in a minute, or a recurring job, on a simulated GPU; everything else is real."""
