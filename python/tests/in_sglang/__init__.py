"""Tests of kvlane.sglang: `tools/python-env sglang` makes an environment for them."""
