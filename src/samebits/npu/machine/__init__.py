"""The machine as data: instructions, programs as text and words, memory images, checks."""
