"""Options of inference engines. Each name is that of the engine's own command line or configuration."""

from __future__ import annotations

from trace_doctor_rules._shared import advised

decode_in_graphs = advised(
    "Capture CUDA graphs for these batch sizes",
    "# vLLM: no --enforce-eager; --max-cudagraph-capture-size N, or\n"
    '#   --compilation-config \'{"cudagraph_mode": "FULL_AND_PIECEWISE"}\'\n'
    "# SGLang: no --disable-cuda-graph; --cuda-graph-max-bs N\n"
    "# TensorRT-LLM: cuda_graph_config: {enable_padding: true, max_batch_size: N}",
    "each graph takes memory of the KV cache and some seconds at the start of the server",
)
"""Advice: graphs for all batch sizes that are served."""
schedule_ahead = advised(
    "Overlap scheduling with GPU work",
    "# vLLM: --async-scheduling\n"
    "# SGLang: no --disable-overlap-schedule\n"
    "# TensorRT-LLM: disable_overlap_scheduler: false",
    "some features turn it off: see the release notes of the engine",
)
"""Advice: the next step is prepared while the GPU works on this one."""
static_cache = advised(
    "Generate with a static KV cache",
    'model.generate(**inputs, cache_implementation="static")   # compiles the decode forward, with CUDA graphs\n'
    "# pad prompts to a few lengths, so that it is compiled once for each",
    "the cache is allocated for the longest output; the first call compiles",
)
"""Advice for `generate()` of transformers."""
copy_tokens_behind = advised(
    "Copy tokens to pinned memory",
    "pinned.copy_(tokens, non_blocking=True)   # instead of tokens.tolist() or .item()\n"
    "done.record()                             # torch.cuda.Event()\n"
    "...                                       # launch the next step\n"
    "done.synchronize()                        # waits for this copy alone",
    "the tokens are known one step later",
)
"""Advice for code of an engine or a plugin: tokens are copied without a wait of the host."""
no_value_on_host = advised(
    "Keep the value on the GPU",
    "# in the engine's or the model's own code: torch.where(), index_select() or a mask instead of .item() and `if tensor`;\n"
    "# sizes that the scheduler knows: pass them as numbers\n"
    "# or turn off the feature that needs it (the finding names the function), or try a newer release of the engine",
    "the code of the engine changes with its releases",
)
"""Advice for the code of an engine: the host needs no value of a tensor."""
serve_in_half = advised(
    "Serve the model in bfloat16",
    "# vLLM, SGLang: --dtype bfloat16   (float16 before compute capability 8)\n"
    "# TensorRT-LLM: dtype: bfloat16\n"
    "# or a quantized checkpoint: --quantization",
    "outputs differ from fp32",
)
"""Advice: the number format of weights and products is an option of the server."""
fused_attention_backend = advised(
    "Choose a fused attention backend",
    "# vLLM: --attention-backend FLASH_ATTN, or FLASHINFER\n"
    "# SGLang: --attention-backend flashinfer, or fa3\n"
    "# TensorRT-LLM: attn_backend: TRTLLM",
    "a backend supports some head sizes and number formats only",
)
"""Advice: the kernels of attention are an option of the server."""
compile_in_engine = advised(
    "Let the engine compile the model",
    "# vLLM: no --enforce-eager, and compilation mode 3 (-O3)\n"
    "# SGLang: --enable-torch-compile --torch-compile-max-bs N",
    "the server takes longer to start",
)
"""Advice: an engine compiles its model itself."""
more_requests = advised(
    "Serve more requests concurrently",
    "# clients: more concurrent requests, or one batch of prompts\n"
    "# limits of the server: vLLM --max-num-seqs, SGLang --max-running-requests, TensorRT-LLM max_batch_size\n"
    "# fewer replicas, so that each gets more of the load\n"
    "# for one request alone: speculative decoding, quantized weights, or a larger tensor-parallel degree",
    "each request waits a little longer for its tokens, and the KV cache must hold them all",
)
"""Advice: more requests share a decode step."""
smaller_prefills = advised(
    "Use smaller prefill chunks",
    "# vLLM: lower --max-num-batched-tokens, or set --long-prefill-token-threshold\n"
    "# SGLang: lower --chunked-prefill-size, add --enable-mixed-chunk\n"
    "# TensorRT-LLM: enable_chunked_prefill: true, and lower max_num_tokens\n"
    "# or prefill on other GPUs (disaggregated prefill)",
    "the first token of a long prompt comes later",
)
"""Advice: prompts are computed in chunks, together with decodes."""
record_after_warm_up = advised(
    "Start the profiler after the warm-up",
    "# start it through the server's own request once requests are being answered\n"
    "curl -X POST http://HOST:PORT/start_profile",
    "the server is slower while it is profiled",
)
"""Advice for captures that hold the start of a server."""
batch_block_copies = advised(
    "Batch KV cache copies",
    "# vLLM: a version with https://github.com/vllm-project/vllm/pull/38460, on CUDA 12.8 or later;\n"
    "#   or larger blocks: --block-size N\n"
    "# SGLang: --hicache-io-backend kernel; or larger pages: --page-size N",
    "larger blocks waste more memory in the last block of each request",
)
"""Advice: blocks of the KV cache are moved with fewer calls."""
keep_cache_on_device = advised(
    "Keep more KV cache on the GPU",
    "# vLLM: raise --gpu-memory-utilization; lower --max-num-seqs; --kv-cache-dtype fp8;\n"
    "#   older versions: lower --swap-space; offloading is an option: --kv-offloading-size\n"
    "# SGLang: raise --mem-fraction-static; lower --max-running-requests; no --enable-hierarchical-cache",
    "less memory is left for activations, or fewer requests run together",
)
"""Advice: less of the KV cache is moved to the host."""
balance_requests = advised(
    "Balance requests over ranks",
    "# vLLM: let the server balance (no --data-parallel-external-lb), --api-server-count N;\n"
    "#   experts: --enable-eplb\n"
    "# SGLang with --enable-dp-attention: --load-balance-method; experts: --enable-eplb\n"
    "# TensorRT-LLM: attention_dp_config: {enable_balance: true}\n"
    "# fewer requests than ranks: a smaller data-parallel size",
    "a request may wait until the ranks can be balanced",
)
"""Advice: ranks of data-parallel attention get equal loads."""
