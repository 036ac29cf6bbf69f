"""Where signals come from: each provider gives a history and a forecast as `Signal`."""
