"""The one model behind the screens, terminal and web: lanes with slices over the lake and over kept profiles."""
