"""Two sets of training steps compared: tables whose rows add up to the change, and what speaks against comparing."""
