"""Tests of kvlane.sglang. `tools/python-env sglang` creates the environment that they need."""
