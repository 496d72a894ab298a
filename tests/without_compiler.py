"""The first lines of scripts that tests record.

Optimizers and the profiler import the compiler also where nothing is compiled, which takes as long as importing PyTorch.
Scripts that compile, run ranks or compare what is computed do without these lines.
"""

WITHOUT_COMPILER = """
import sys, types
for name in ("torch._dynamo", "torch._inductor", "torch._inductor.config"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["torch._dynamo"].disable = lambda function, *_, **__: function
sys.modules["torch._dynamo"].graph_break = lambda: None
sys.modules["torch._inductor.config"].triton = types.SimpleNamespace(cudagraphs=False)
"""
