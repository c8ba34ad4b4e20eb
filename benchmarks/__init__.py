"""Measurements of speed, side by side with others."""

import os

# Before anything imports TensorFlow: its notes on the CPU would tear a progress bar.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '1')
