"""Other runtimes of TensorFlow Lite files, run as peers in a process of their own."""
