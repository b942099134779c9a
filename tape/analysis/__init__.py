"""What an encoding costs, and what it does inside a decoder."""

# Changes of TAPE's state (state.py).
INTERVENTIONS = ("initial", "without_attention", "without_feed_forward")
INTERVENTIONS += ("phases", "magnitudes", "constant", "other_text")
