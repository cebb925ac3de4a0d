#!/usr/bin/env python3
"""row_loops.py finds row loops, what they read from the stack, and what became worse."""

import os
import tempfile
import unittest

import row_loops
from row_loops import Cost, Loop

HEAD = "0000000000000010 <void glmd::avx2::(anonymous namespace)::multiply_panel<glmd::Nl4, 2, X>(Y)>:\n"
ROW_LOOP = """  20:\tvpmaddubsw (%rax),%ymm1,%ymm2
  24:\tvpmaddwd %ymm3,%ymm2,%ymm2
  28:\tjne    20 <void glmd::avx2::multiply_panel+0x10>
"""


class RowLoops(unittest.TestCase):
    def test_a_loop_that_multiplies_is_named_by_its_kernel(self):
        (loop,) = row_loops.row_loops(HEAD + ROW_LOOP)
        self.assertEqual(loop.name, "nl4 gate-up, many rows")
        self.assertEqual(len(loop.body), 3)

    def test_a_loop_around_it_is_none(self):
        around = HEAD + "  1c:\tnop\n" + ROW_LOOP + "  30:\tjmp    1c <x>\n"
        self.assertEqual(row_loops.row_loops(around), row_loops.row_loops(HEAD + ROW_LOOP))

    def test_a_loop_that_unpacks_is_none(self):
        for unpacks in ("vpshufb %ymm1,%ymm2,%ymm3", "vpabsb %ymm1,%ymm2"):
            self.assertEqual(row_loops.row_loops(
                HEAD + ROW_LOOP.replace("  28:", f"  26:\t{unpacks}\n  28:")), [])

    def test_a_loop_with_broadcasts_is_one_of_few_rows(self):
        few = HEAD + ROW_LOOP.replace("  28:", "  26:\tvpbroadcastd (%rax),%ymm4\n  28:")
        self.assertEqual(row_loops.row_loops(few)[0].name, "nl4 gate-up, few rows")

    def test_what_reads_the_stack_is_told_from_what_writes_it(self):
        reads = ["vpsignb 0xc0(%rsp),%ymm0,%ymm0", "vmovdqa (%rsp),%ymm1", "vmulps 0x1(%rbp),%ymm1,%ymm1"]
        others = ["vmovdqa %ymm1,0x20(%rsp)", "vmovaps %ymm2,(%rsp,%rax,1)", "vpaddw (%rcx),%ymm1,%ymm1"]
        self.assertEqual(row_loops.stack_loads(Loop("", reads + others, "rsp rbp")), reads)

    def test_rbp_is_the_stack_only_where_it_is_a_frame(self):
        loop = ROW_LOOP.replace("  28:", "  26:\tvpaddw (%rbp),%ymm1,%ymm1\n  28:")
        frame = "  18:\tmov    %rsp,%rbp\n"
        (free,), (framed,) = row_loops.row_loops(HEAD + loop), row_loops.row_loops(HEAD + frame + loop)
        self.assertEqual(row_loops.stack_loads(free), [])
        self.assertEqual(row_loops.stack_loads(framed), ["vpaddw (%rbp),%ymm1,%ymm1"])

    def test_a_kernel_without_a_row_loop_is_named(self):
        texts = list(row_loops.missing(row_loops.row_loops(HEAD + ROW_LOOP)))
        self.assertIn("nl5 matmul, many rows: wanted a row loop, found none", texts)
        self.assertNotIn("nl4 gate-up, many rows: wanted a row loop, found none", texts)

    def test_jumps_lose_the_names_that_no_assembler_takes(self):
        self.assertEqual(row_loops.assembly_of(["nop", "jne    20 <a, b>"]), "1:\nnop\njne 1b\n")

    def test_what_is_worse_than_recorded_is_named(self):
        cycles = dict.fromkeys(row_loops.PROCESSORS, 9.0)
        recorded = {"nl4": [29.0] + [9.0] * len(cycles)}
        self.assertEqual(list(row_loops.warnings({"nl4": Cost(29.0, cycles, {})}, recorded)), [])
        worse = Cost(29.0, cycles | {"skylake": 9.2}, {})
        self.assertEqual(list(row_loops.warnings({"nl4": worse}, recorded)),
                         ["nl4: skylake: 9.2, recorded 9.0"])

    def test_a_record_is_read_as_it_was_written(self):
        costs = {"nl4, many rows": Cost(29.0, dict.fromkeys(row_loops.PROCESSORS, 8.72), {})}
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "record")
            row_loops.write_record(path, "someone", costs)
            self.assertEqual(row_loops.read_record(path),
                             ("someone", {"nl4, many rows": [29.0] + [8.72] * len(row_loops.PROCESSORS)}))


if __name__ == "__main__":
    unittest.main()
