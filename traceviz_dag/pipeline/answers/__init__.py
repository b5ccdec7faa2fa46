"""What is answered about iterations: rows and sentences, as commands print and the Python API returns them."""
