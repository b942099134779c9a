"""What an encoding is made of: its interface, scores, sums, samplers, schedules, rotation."""
