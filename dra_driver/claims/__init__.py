"""What a pod got: the plan, the journal, the CDI edits and the preparer that orders the effects."""
