"""What any room may use: errors, whole files, shortened texts, waits, worker threads, logs, metrics, envelopes."""
