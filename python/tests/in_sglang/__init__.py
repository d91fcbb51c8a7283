"""Tests of kvlane.sglang: tools/sglang-env makes an environment for them."""
