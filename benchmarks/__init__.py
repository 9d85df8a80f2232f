"""Performance, measured side by side with peers; one file a topic."""
