# vLLM with kvlane's wheel. Build from the root of a clone, after `make wheel`:
#   docker build -f deploy/docker/vllm.Dockerfile -t vllm-kvlane .
FROM vllm/vllm-openai:v0.33.0

COPY bin/wheel/kvlane-*.whl /opt/kvlane/
RUN python3 -m pip install --no-cache-dir --no-index --no-deps /opt/kvlane/kvlane-*.whl \
 && python3 -c "import kvlane.vllm" \
 && kvlane version
