"""The same federated rounds in several frameworks, each in an environment of its own."""
