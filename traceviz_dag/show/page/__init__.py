"""What figures share: palette, typography, layout, facts."""
