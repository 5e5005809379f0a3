"""
Starts llama.cpp's own server, which the package xllamacpp carries: ``start_llama_cpp.py MODEL TEMPLATE PORT``.
"""

import signal
import sys
from pathlib import Path

import xllamacpp

model, template, port = sys.argv[1:]
params = xllamacpp.CommonParams()
params.model.path = model
params.model_alias = {"gemma"}
params.chat_template = Path(template).read_text()
params.port = int(port)
params.n_ctx = 4096
# With as many threads as cores they wait for each other as soon as anything else runs.
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
server = xllamacpp.Server(params)
signal.pause()
