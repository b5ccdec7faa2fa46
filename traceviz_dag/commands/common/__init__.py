"""What the commands share: options, output, failures, partial results."""
