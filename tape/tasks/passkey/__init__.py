"""Passkey retrieval: accuracy by the length of the prompt and the depth of the key."""
