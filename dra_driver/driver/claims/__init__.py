"""Claims that kubelet asks to prepare and unprepare: planned, kept in a checkpoint, written as CDI specs."""
