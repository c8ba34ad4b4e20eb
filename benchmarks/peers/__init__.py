"""The same federated rounds in several frameworks, each in its own environment."""
