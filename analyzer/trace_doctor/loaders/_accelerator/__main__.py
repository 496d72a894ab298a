"""`python -m trace_doctor.loaders._accelerator` compiles the decoder in C beside its sources, or says why it cannot."""

import sys

from trace_doctor.loaders._accelerator import FOLDER
from trace_doctor.loaders._accelerator.build import build

problem = build(FOLDER)
sys.exit(f"the decoder in C was not built: {problem}" if problem else 0)
