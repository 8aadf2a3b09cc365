"""Features, skill prior, alt-label override, LambdaRank bag and calibration: arrays and names, no models."""
