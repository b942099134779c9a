"""What an encoding costs, and what it does inside a decoder."""
