"""The rules, a file each; ``registry.py`` lists them."""
