"""Tests of kvlane.vllm against vLLM for CPUs."""
