"""The metadata kernel, compiled for sm_120 and sm_121 without a GPU."""

from __future__ import annotations

import pytest
import torch

from compile_gate import compile_for, target
from kernels import metadata
from kernels.config import SM120


def launch(rows=3, pages=16, dtype=torch.int32, offset=0):
    vector = torch.zeros(rows + 1, dtype=dtype)[offset : offset + rows]
    table = torch.zeros(rows, pages + 3, dtype=torch.int32)[:, offset : offset + pages]
    return metadata.plan(vector, vector, vector, table, 256)[0]


@pytest.mark.parametrize("arch", (120, 121))
@pytest.mark.parametrize("dtype", (torch.int32, torch.int64))
def test_fits_the_card(dtype, arch, report):
    machine = compile_for(launch(dtype=dtype), arch)
    resident = SM120.blocks_resident(
        machine.registers, machine.shared, machine.num_warps
    )
    report.row(f"compressed metadata, {dtype}", machine, resident)
    assert machine.spill_bytes == 0 and machine.stack_bytes == 0
    assert resident >= 8


def test_one_specialisation_for_every_width_and_batch():
    kernel = metadata._compression_metadata_kernel
    keys = set()
    with target(120):
        for rows in (1, 2, 16, 17, 2048):
            for pages in (1, 2, 15, 16, 32, 4097):
                plan = launch(rows, pages, offset=rows % 2)
                _, specialization, options = kernel.create_binder()[4](
                    **plan.args, **plan.options
                )
                keys.add((str(specialization), str(options)))
    assert len(keys) == 1, keys
