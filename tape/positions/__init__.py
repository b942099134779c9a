"""What an encoding is made of: its interface, scores, sums, samplers, schedules, rotation."""

BACKENDS = ("eager", "sdpa", "flex_attention", "flash_attention_2")  # of attention
