"""Tests of kvlane.vllm, in vLLM for CPUs."""
