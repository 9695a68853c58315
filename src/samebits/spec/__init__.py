"""The executable specification: plain integers, and of the project nothing but its errors."""
