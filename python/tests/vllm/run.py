"""Runs vLLM with kvlane for a test, in a process of its own: run.py PLAN, where PLAN is JSON.

{"model": folder, "engine": arguments of LLM, "kvlane": what kv_connector_extra_config has, or null for none, "steps": [...]}, where a step
is {"prompts": [[token, ...], ...], "tokens": n} or {"reset": true} (the engine forgets its own prefix cache) or {"reset": "all"}. Prints a
line "STEP {...}" for each, with the tokens and the number of cached tokens of each prompt.
"""

import json
import sys


def main() -> None:
    plan = json.loads(sys.argv[1])
    from vllm import LLM, SamplingParams
    from vllm.config import KVTransferConfig

    more = {}
    if plan["kvlane"] is not None:
        more["kv_transfer_config"] = KVTransferConfig(
            kv_connector="Connector",
            kv_connector_module_path="kvlane.vllm",
            kv_role="kv_both",
            kv_load_failure_policy="recompute",
            kv_connector_extra_config=plan["kvlane"],
        )
    llm = LLM(plan["model"], skip_tokenizer_init=True, enforce_eager=True, disable_log_stats=False, **plan["engine"], **more)
    print("UP", flush=True)
    for step in plan["steps"]:
        if "reset" in step:
            out = {"reset": llm.reset_prefix_cache(reset_connector=step["reset"] == "all")}
        else:
            outputs = llm.generate(
                [{"prompt_token_ids": p} for p in step["prompts"]],
                SamplingParams(max_tokens=step["tokens"], min_tokens=step["tokens"], temperature=0, detokenize=False, logprobs=1),
                use_tqdm=False,
            )
            out = {
                "tokens": [list(o.outputs[0].token_ids) for o in outputs],
                "logprobs": [[max(p.logprob for p in at.values()) for at in o.outputs[0].logprobs] for o in outputs],
                "cached": [o.num_cached_tokens for o in outputs],
                "reasons": [o.outputs[0].finish_reason for o in outputs],
            }
        print("STEP " + json.dumps(out), flush=True)


if __name__ == "__main__":
    main()
