"""What this node has, read from files below one host root, and the emulator that writes the same tree."""
