#!/usr/bin/env python3
"""What the row loops of the AVX2 matrix kernels cost on processors that are not at hand.

A row loop is an innermost loop that multiplies int8 (vpmaddubsw) and unpacks no weights: each turn meets
weights in registers with some rows of activations. It must read nothing from the stack. llvm-mca says how
many cycles a row and group of 32 columns takes on each processor, beside what its pipes allow. A loop
that is worse than recorded gives a warning. Exits 77, skipped, where there is no llvm-mca that knows them.

usage: row_loops.py [--record] COMPILER OBJECT...   (of all kernels; avx2/matmul is taken)
"""

import os
import re
import shutil
import subprocess
import sys
from collections import namedtuple

PROCESSORS = ("znver3", "znver4", "skylake", "icelake-server", "alderlake")
OLDEST_LLVM = 16  # the first that knows znver4
NEWEST_LLVM = 40
RECORD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "row_loops.txt")
GROUP_PRODUCTS = 8  # vpmaddubsw for a row and group; a loop over half a group has half of them
ITERATIONS = 300
WORSE = 1.01
SKIPPED = 77

Loop = namedtuple("Loop", "name body stack")  # stack: the registers that point there
Cost = namedtuple("Cost", "instructions cycles bounds")  # a row and group; by processor


def functions_of(disassembly):
    """(name, [(address, instruction)]) of what objdump printed."""
    name, body = None, []
    for line in disassembly.splitlines():
        head = re.match(r"[0-9a-f]+ <(.*)>:$", line)
        if head:
            if name:
                yield name, body
            name, body = head.group(1), []
        step = re.match(r"\s+([0-9a-f]+):\s+(\S.*)", line)
        if step:
            body.append((int(step.group(1), 16), step.group(2).strip()))
    if name:
        yield name, body


def innermost_loops(body):
    """Instructions between a jump backwards and its target, if no such jump lies between them."""
    places = {address: i for i, (address, _) in enumerate(body)}
    spans = []
    for last, (_, text) in enumerate(body):
        jump = re.match(r"j\w+\s+([0-9a-f]+)\b", text)
        first = places.get(int(jump.group(1), 16)) if jump else None
        if first is not None and first <= last:
            spans.append((first, last))
    for first, last in spans:
        if not any((a, b) != (first, last) and a >= first and b <= last for a, b in spans):
            yield [text for _, text in body[first:last + 1]]


def count(body, mnemonic):
    return sum(text.split()[0] == mnemonic for text in body)


def is_row_loop(body):
    return (count(body, "vpmaddubsw") and count(body, "vpmaddwd")
            and not count(body, "vpshufb") and not count(body, "vpabsb"))


def kind_of(body):
    if count(body, "vpbroadcastd"):
        return "few rows"
    if not count(body, "vpxor"):
        return "many rows"
    return "many rows, second half" if count(body, "vcvtdq2ps") else "many rows, first half"


def row_loops(disassembly):
    loops = []
    for function, body in functions_of(disassembly):
        kernel = re.search(r"::(Nl4|Nl5|Q8), ([12])\b", function)
        has_frame = any(text == "mov    %rsp,%rbp" for _, text in body)
        for loop in innermost_loops(body):
            if is_row_loop(loop):
                place = (f"{kernel.group(1).lower()} {('matmul', 'gate-up')[int(kernel.group(2)) - 1]}"
                         if kernel else function)
                loops.append(Loop(f"{place}, {kind_of(loop)}", loop, "rsp rbp" if has_frame else "rsp"))
    return sorted(loops)


def stack_loads(loop):
    """Instructions that read the stack: a store has its place last."""
    place = rf"\(%({loop.stack.replace(' ', '|')})\b"
    return [text for text in loop.body if re.search(place, text)
            and not re.match(r"v?mov\S*\s+%\w+,[^,]*" + place, text)]


def missing(loops):
    names = {loop.name for loop in loops}
    for kernel in ("matmul", "gate-up"):
        for weights in ("nl4", "nl5", "q8"):
            halves = [", first half", ", second half"] if weights == "q8" else [""]
            for kind in ["few rows"] + ["many rows" + half for half in halves]:
                if f"{weights} {kernel}, {kind}" not in names:
                    yield f"{weights} {kernel}, {kind}: wanted a row loop, found none"


def find_llvm_mca():
    """(path, version) of the recorded one, else of the newest, or None."""
    recorded = int(read_record(RECORD)[0].rsplit(" ", 1)[1])
    for version in (recorded, *range(NEWEST_LLVM, OLDEST_LLVM - 1, -1)):
        path = shutil.which(f"llvm-mca-{version}")
        if path:
            return path, version
    return None


def assembly_of(body):
    """What llvm-mca reads: jumps need a label, names of functions are none."""
    lines = [re.sub(r"^(j\w+)\s.*", r"\1 1b", re.sub(r"\s+#.*", "", text)) for text in body]
    return "1:\n" + "\n".join(lines) + "\n"


def cost_of(llvm_mca, body):
    products = GROUP_PRODUCTS // 2 if "half" in kind_of(body) else GROUP_PRODUCTS
    rows = count(body, "vpmaddubsw") / products
    cycles, bounds = {}, {}
    for processor in PROCESSORS:
        text = subprocess.run([llvm_mca, "-mtriple=x86_64", f"-mcpu={processor}",
                               f"-iterations={ITERATIONS}"], input=assembly_of(body),
                              capture_output=True, text=True, check=True).stdout
        total = float(re.search(r"Total Cycles:\s+(\d+)", text).group(1)) / ITERATIONS
        bound = float(re.search(r"Block RThroughput:\s+([\d.]+)", text).group(1))
        cycles[processor], bounds[processor] = round(total / rows, 2), round(bound / rows, 2)
    return Cost(round(len(body) / rows, 1), cycles, bounds)


def read_record(path):
    """(by whom, {loop: [instructions, cycles...]})"""
    with open(path, encoding="utf-8") as file:
        by, _, *lines = file.read().splitlines()
    return by, {name.strip(): [float(value) for value in values.split()]
                for name, values in (line.split(":") for line in lines)}


def write_record(path, by, costs):
    head = f"a row and group{'':18} instructions, cycles of {', '.join(PROCESSORS)}"
    with open(path, "w", encoding="utf-8") as file:
        print(by, head, sep="\n", file=file)
        for name, cost in costs.items():
            print(f"{name + ':':36} {cost.instructions:5}", *(f"{cost.cycles[p]:6.2f}" for p in PROCESSORS),
                  file=file)


def warnings(costs, recorded):
    for name, cost in costs.items():
        if name not in recorded:
            yield f"{name}: not recorded"
            continue
        got = [cost.instructions] + [cost.cycles[p] for p in PROCESSORS]
        for what, new, old in zip(("instructions",) + PROCESSORS, got, recorded[name]):
            if new > old * WORSE:
                yield f"{name}: {what}: {new}, recorded {old}"


def worst_costs(llvm_mca, loops):
    """By name: where a kernel has several loops of a kind, the one of most instructions."""
    costs, seen = {}, {}
    for loop in loops:
        text = assembly_of(loop.body)
        if text not in seen:
            seen[text] = cost_of(llvm_mca, loop.body)
        if loop.name not in costs or costs[loop.name].instructions < seen[text].instructions:
            costs[loop.name] = seen[text]
    return costs


def print_table(costs):
    print(f"{'a row and group: cycles (bound)':35} {'instructions':>12}",
          *(f"{p:>14}" for p in PROCESSORS))
    for name, cost in costs.items():
        print(f"{name:35} {cost.instructions:12}",
              *(f"{cost.cycles[p]:6.2f} ({cost.bounds[p]:5.2f})" for p in PROCESSORS))


def main(arguments):
    records = arguments[:1] == ["--record"]
    compiler, *paths = arguments[1:] if records else arguments
    (path,) = [p for p in paths if re.search(r"/avx2/matmul\.cpp\.o$", p)]
    loops = row_loops(subprocess.run(["objdump", "--disassemble", "--demangle", "--no-show-raw-insn", path],
                                     capture_output=True, text=True, check=True).stdout)
    faults = list(missing(loops))
    for loop in loops:
        faults += [f"{loop.name}: reads the stack: {text}" for text in stack_loads(loop)]
    print(*faults, sep="\n", end="\n" if faults else "")
    found = find_llvm_mca()
    if not found:
        print(f"skipped: no llvm-mca-{OLDEST_LLVM} or newer; tools/install-deps has one")
        return 1 if faults else SKIPPED
    llvm_mca, version = found
    by = f"{compiler}, llvm-mca {version}"
    costs = worst_costs(llvm_mca, loops)
    print_table(costs)
    if records:
        write_record(RECORD, by, costs)
        return 1 if faults else 0
    recorded_by, recorded = read_record(RECORD)
    if by != recorded_by:
        print(f"{by}: not compared with what {recorded_by} gave")
    else:
        for text in warnings(costs, recorded):
            print(f"warning: {text}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
