"""The live timeline: what a page in a browser asks of a ``ScreenModel``, and what it is answered."""
