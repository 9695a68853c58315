"""One model on many backends, compared for equality."""
