"""Export a plan as a torch.export archive, for C++ and Python programs with torch."""

import io
import warnings

import numpy as np
import torch

from nsde_policy.deploy.export.parity import GraphOutputs, RunGraph
from nsde_policy.deploy.export.plan_module import PlanTracer
from nsde_policy.deploy.runtime.metadata import RECORD_KEY, GraphRecord
from nsde_policy.errors import ExportError, summarize_error

RECORD_FILE = f"{RECORD_KEY}.json"
"""Name of the record in the archive."""


def build_pt2(tracer: PlanTracer, record: GraphRecord) -> bytes:
    """Trace a plan and return the archive with its record."""
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # LSTMs warn about their weights while they are traced
            program = torch.export.export(tracer.module, tracer.build_example(), strict=False)
    except (RuntimeError, torch._dynamo.exc.TorchDynamoException) as error:
        raise ExportError(f"cannot trace this policy: {summarize_error(error)}") from None
    program.graph.eliminate_dead_code()  # an unused empty loop can be saved but not loaded
    file = io.BytesIO()
    torch.export.save(program, file, extra_files={RECORD_FILE: record.to_json()})
    return file.getvalue()


def load_pt2(content: bytes) -> RunGraph:
    """Load an archive and return a function that runs it."""
    files = {RECORD_FILE: ""}
    module = torch.export.load(io.BytesIO(content), extra_files=files).module()
    names = GraphRecord.from_json(files[RECORD_FILE]).outputs

    def run(inputs: list[np.ndarray]) -> GraphOutputs:
        with torch.no_grad():
            out = module(*(torch.from_numpy(values) for values in inputs))
        return {name: tensor.numpy() for name, tensor in zip(names, out, strict=True)}

    return run
