"""Small helpers that any package may use: errors, whole-file access, shortened texts, waits and worker threads."""
