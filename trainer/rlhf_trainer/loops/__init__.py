"""Training loops, each short enough to read in one go, and the steps they call."""
