#!/usr/bin/env python3
"""Writes unicode_tables.inc: which code points are letters, numbers, words and printable.

Letters and numbers are asked of the `tokenizers` package, the reference of the tokeniser, code
point by code point, because its Unicode version is the one that decides token ids. Words have a
Unicode version of their own there: added tokens are asked which neighbours they mind. Printable is
Python's str.isprintable, the reference of what the chat template prints for a value that is no
string.

    .venv/bin/python3 daemon/text/make_unicode_tables.py > daemon/text/unicode_tables.inc
"""

import sys

from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers


def matching(pattern):
    split = pre_tokenizers.Split(Regex(pattern), "removed")
    found = set()
    for base in range(0, 0x110000, 0x1000):
        points = [c for c in range(base, base + 0x1000) if not 0xD800 <= c < 0xE000]
        if not points:
            continue
        left = set("".join(piece for piece, _ in split.pre_tokenize_str("".join(map(chr, points)))))
        found |= {c for c in points if chr(c) not in left}
    return found


def word_points():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.add_tokens([AddedToken("@@", single_word=True)])
    points = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    encoded = tokenizer.encode_batch([chr(c) + "@@" for c in points])
    return {c for c, encoding in zip(points, encoded) if not encoding.ids}


def print_ranges(name, points):
    ranges = []
    for point in sorted(points):
        if ranges and ranges[-1][1] == point - 1:
            ranges[-1][1] = point
        else:
            ranges.append([point, point])
    print(f"static constexpr CodePointRange {name}[] = {{")
    line = "   "
    for first, last in ranges:
        item = f" {{0x{first:x}, 0x{last:x}}},"
        if len(line) + len(item) > 100:
            print(line)
            line = "   "
        line += item
    print(line)
    print("};")


def main():
    print("// Written by make_unicode_tables.py; do not edit.")
    print("// clang-format off")
    print_ranges("letter_ranges", matching(r"\p{L}"))
    print_ranges("number_ranges", matching(r"\p{N}"))
    print_ranges("space_ranges", matching(r"\s"))
    print_ranges("word_ranges", word_points())
    print_ranges("unprintable_ranges", {c for c in range(0x110000) if not chr(c).isprintable()})
    print("// clang-format on")
    return 0


if __name__ == "__main__":
    sys.exit(main())
