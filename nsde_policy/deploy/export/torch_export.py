"""The plan of a policy as a torch.export archive, for C++ and Python programs that have torch."""

import io
import warnings

import numpy as np
import torch

from nsde_policy.deploy.export.parity import Answer, Answerer
from nsde_policy.deploy.export.plan_module import Chunk
from nsde_policy.deploy.runtime.metadata import ACTIONS, KEY, PATH, STD, GraphRecord
from nsde_policy.errors import ExportError

RECORD_FILE = f"{KEY}.json"
"""Name of the record within the archive."""


def to_pt2(chunk: Chunk, record: GraphRecord) -> bytes:
    """The archive, the record in it."""
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what LSTMs do to their weights while they are traced
            program = torch.export.export(chunk.fast, chunk.example(), strict=False)
    except (RuntimeError, torch._dynamo.exc.TorchDynamoException) as error:
        raise ExportError(f"this policy cannot be traced: {' '.join(str(error).split())[:300]}") from None
    program.graph.eliminate_dead_code()  # an unused loop over nothing can be written, but not read again
    file = io.BytesIO()
    torch.export.save(program, file, extra_files={RECORD_FILE: record.to_json()})
    return file.getvalue()


def answerer(content: bytes) -> Answerer:
    """How the archive answers once it is loaded again."""
    files = {RECORD_FILE: ""}
    module = torch.export.load(io.BytesIO(content), extra_files=files).module()
    record = GraphRecord.from_json(files[RECORD_FILE])
    names = (ACTIONS, PATH, STD) if record.foresees else (ACTIONS,)

    def answer(inputs: list[np.ndarray]) -> Answer:
        with torch.no_grad():
            out = module(*(torch.from_numpy(values) for values in inputs))
        return {name: tensor.numpy() for name, tensor in zip(names, out, strict=True)}

    return answer
