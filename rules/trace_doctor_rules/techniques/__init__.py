"""The techniques that findings recommend, each written once: what it is, the edit that makes it, how it is written by
hand and in the frameworks, and what could go wrong. Rules add where it applies and how to verify it.

Safety follows what was measured: nothing here is `safe` without a test that shows the same losses bit by bit.
"""

from trace_doctor_rules.techniques.arithmetic import autocast, channels_last, cudnn_benchmark, tf32
from trace_doctor_rules.techniques.attention import (
    attention_libraries,
    no_attention_weights,
    sdpa_backend,
    use_sdpa,
)
from trace_doctor_rules.techniques.compiling import (
    compile_blocks,
    compile_loss,
    compile_model,
    forbid_graph_breaks,
    keep_in_graph,
    mark_dynamic,
    steady_shapes,
)
from trace_doctor_rules.techniques.data import (
    more_workers,
    persistent_workers,
    pinned_copies,
    shard_iterable,
    start_workers,
    start_workers_in_lightning,
    start_workers_in_trainer,
    work_ahead,
)
from trace_doctor_rules.techniques.host import (
    create_on_device,
    cuda_graphs,
    fill_the_gpu,
    make_once,
    off_the_step,
    vectorise,
)
from trace_doctor_rules.techniques.machines import one_image
from trace_doctor_rules.techniques.memory import (
    checkpoint_blocks,
    chunked_loss,
    foreach_optimizer,
    fused_optimizer,
    gradient_accumulation,
    keep_the_cache,
    larger_batch,
    less_optimizer_state,
    max_split_size,
    offload,
    raise_batch,
    release_output,
    update_together,
)
from trace_doctor_rules.techniques.ranks import (
    data_parallel,
    ddp_arguments,
    fully_shard,
    grouped_gemm,
    no_sync,
    overlap_collective,
    prefetch_shards,
    zero,
)
from trace_doctor_rules.techniques.waits import (
    copy_behind,
    copy_seldom,
    fixed_sizes,
    no_synchronize,
    read_seldom,
    sum_on_device,
)
