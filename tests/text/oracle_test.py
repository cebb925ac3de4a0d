#!/usr/bin/env python3
"""Compares glmd-inspect with the references on generated input.

Strings go through the `tokenizers` package, conversations through Jinja2 with the model's
template. Both programs see the same lines; the first differences are printed, with the seed.

    oracle_test.py GLMD_INSPECT MODEL_FOLDER [--strings N] [--chats N] [--seed N]
                   [--added N] [--optional TOKENIZER_JSON_GZ]
"""

import argparse
import gzip
import itertools
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time

import jinja2
import jinja2.sandbox
import tokenizers

ADDED = [
    "<|endoftext|>",
    "[MASK]",
    "[gMASK]",
    "[sMASK]",
    "<sop>",
    "<eop>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "/nothink",
    "<|begin_of_box|>",
    "<|image|>",
]
WORDS = [
    "the",
    "Hello",
    "world",
    "naïve",
    "Straße",
    "тебе",
    "中文",
    "測試",
    "日本語",
    "한국어",
    "עברית",
    "العربية",
    "हिन्दी",
    "ไทย",
    "I'm",
    "DON'T",
    "we'LL",
    "you've",
    "'ſ",
    "'S",
    "x'",
    "''re",
    "e\u0301",
    "function",
    "return",
    "0x1F",
    "3.14159",
    "1234567",
    "１２３",
    "Ⅷ",
    "½",
    "²",
    "٣٤",
]
CODE = [
    "def f(x):\n    return x + 1\n",
    "if (a->b != 0) {\r\n\t\treturn *p++;\r\n}",
    '```json\n{"a": [1,2]}\n```',
    "SELECT * FROM t WHERE id = 10000;",
    "https://example.com/a?b=1&c=2#d",
    "// ---- ====\n",
    "#include <x>\n",
]
EMOJI = ["👍🏽", "👨‍👩‍👧‍👦", "🇩🇪", "☃️", "🙂", "\u200d", "\ufe0f"]
SPACES = [
    " ",
    "  ",
    "   ",
    "\n",
    "\n\n",
    "\r\n",
    "\t",
    "\u00a0",
    "\u3000",
    "\u2028",
    "\u0085",
    "\u200b",
    "\u180e",
    "\u1680",
    "\x0b",
    "\x0c",
    "\x1c",
    "\x1f",
    "\ufeff",
    " \n ",
    "\n  ",
]


def random_code_point(random_):
    while True:
        limit = random_.choice([0x80, 0x100, 0x800, 0x3000, 0x10000, 0x20000, 0x110000])
        point = random_.randrange(limit)
        if not 0xD800 <= point < 0xE000:
            return chr(point)


def random_text(random_, parts_max=12):
    parts = []
    for _ in range(random_.randrange(parts_max + 1)):
        kind = random_.randrange(10)
        if kind == 0:
            parts.append(
                "".join(random_code_point(random_) for _ in range(random_.randrange(1, 8)))
            )
        elif kind == 1:
            parts.append("".join(random_.choice(SPACES) for _ in range(random_.randrange(1, 6))))
        elif kind == 2:
            parts.append(
                "".join(random_.choice("0123456789") for _ in range(random_.randrange(1, 9)))
            )
        elif kind == 3:
            token = random_.choice(ADDED)
            parts.append(random_.choice([token, token, token[:-1], token[1:], token.upper()]))
        elif kind == 4:
            parts.append(random_.choice(CODE))
        elif kind == 5:
            parts.append(random_.choice(EMOJI))
        elif kind == 6:
            parts.append(
                "".join(
                    random_.choice("'\"-_.,:;!?()[]{}<>|/\\=+*&^%$#@~`")
                    for _ in range(random_.randrange(1, 6))
                )
            )
        elif kind == 7:
            parts.append(
                "".join(
                    random_.choice("abcdefghijklmnopqrstuvwxyzABCDEFS'")
                    for _ in range(random_.randrange(1, 12))
                )
            )
        else:
            parts.append(random_.choice(WORDS))
        if random_.random() < 0.4:
            parts.append(" ")
    return "".join(parts)


def through(program, arguments, lines):
    """The program's line for each of ours."""
    text = "".join(line + "\n" for line in lines)
    done = subprocess.run(
        [program, *arguments, "--lines"], input=text.encode(), capture_output=True, check=False
    )
    out = done.stdout.decode().split("\n")[:-1]
    if len(out) != len(lines):
        raise SystemExit(
            f"{arguments}: {len(lines)} lines in, {len(out)} out: {done.stderr.decode()}"
        )
    return [json.loads(line) for line in out]


def dump(value):
    return json.dumps(value, ensure_ascii=False)


class Comparison:
    def __init__(self):
        self.failures = 0

    def check(self, what, given, got, wanted):
        if got == wanted:
            return
        self.failures += 1
        if self.failures <= 10:
            print(f"{what} differs\n  input  {dump(given)}")
            print(f"  wanted {dump(wanted)}\n  got    {dump(got)}")


def compare_tokens(comparison, program, path, texts, random_):
    reference = tokenizers.Tokenizer.from_file(path)
    encoded = through(program, ["tokenize", path], [dump(text) for text in texts])
    id_lists = []
    for text, got in zip(texts, encoded):
        wanted = reference.encode(text, add_special_tokens=False).ids
        comparison.check("tokenize", text, got, wanted)
        id_lists.append(wanted)
    # Decoding is asked for any ids, so that characters are broken and ids without a token occur.
    size = reference.get_vocab_size(with_added_tokens=True)
    for _ in range(len(texts) // 4):
        id_lists.append([random_.randrange(size + 8) for _ in range(random_.randrange(12))])
    for _ in range(len(texts) // 4):
        id_lists.append([random_.randrange(256) for _ in range(random_.randrange(12))])
    decoded = through(program, ["detokenize", path], [dump(ids) for ids in id_lists])
    for ids, got in zip(id_lists, decoded):
        comparison.check("detokenize", ids, got, reference.decode(ids, skip_special_tokens=False))


# Overlapping texts of letters, white space, words and markup, for tokens and what is made into some.
ADDED_PIECES = [
    *["a", "b", "ab", "aba", " ", "  ", "\n", "\u00a0", "\u3000", "é", "_", "1", "²", "Ⓐ", "\u200d"],
    *["\u0301", "中", "<|", "|>", "<|a|>", "!", "x y", "\x1c", "👍"],
]


def random_added_tokens(random_, vocabulary):
    """Every combination of flags, special or not, with contents that overlap."""
    contents = set()
    tokens = []
    for flags in itertools.product([False, True], repeat=5):
        token = dict(zip(["normalized", "single_word", "lstrip", "rstrip", "special"], flags))
        content = ""
        # The reference panics where white space to its left was stripped from such a token.
        while not content or content in contents or (token["lstrip"] and content.isspace()):
            content = "".join(random_.choices(ADDED_PIECES, k=random_.randrange(1, 4)))
        contents.add(content)
        tokens.append({"id": vocabulary.get(content), "content": content, **token})
    next_id = 1 + max(vocabulary.values())
    for token in tokens:
        if token["id"] is None:
            token["id"] = next_id
            next_id += 1
    return tokens


def compare_added_tokens(comparison, program, path, random_, rounds, texts_of_each):
    with open(path, encoding="utf-8") as file:
        root = json.load(file)
    for _ in range(rounds):
        root["added_tokens"] = random_added_tokens(random_, root["model"]["vocab"])
        pieces = ADDED_PIECES + [token["content"] for token in root["added_tokens"]]
        texts = [
            "".join(random_.choices(pieces, k=random_.randrange(16))) for _ in range(texts_of_each)
        ]
        with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
            json.dump(root, file)
            file.flush()
            before = comparison.failures
            compare_tokens(comparison, program, file.name, texts, random_)
            if before == 0 and comparison.failures > 0:
                print(f"with {dump(root['added_tokens'])}")
    print(f"{rounds} sets of added tokens, {texts_of_each} texts each")


def compare_all_code_points(comparison, program, path):
    """Each code point between letters, digits, spaces and marks: its class shows in the cuts."""
    texts = []
    for base in range(0, 0x110000, 16):
        points = [chr(c) for c in range(base, base + 16) if not 0xD800 <= c < 0xE000]
        texts.append("".join(f"a{c}b 1{c}2 {c}{c} !{c}x '{c}" for c in points))
    reference = tokenizers.Tokenizer.from_file(path)
    encoded = through(program, ["tokenize", path], [dump(text) for text in texts])
    for text, wanted, got in zip(
        texts, reference.encode_batch(texts, add_special_tokens=False), encoded
    ):
        comparison.check("tokenize", text, got, wanted.ids)
    print(f"all code points: {len(texts)} texts")


# Values: what a client can put where the template expects something else.

# Numbers as a client may write them; json.dumps never would. LITERAL_MARK makes them strings until
# they are in a line.
NUMBER_LITERALS = [
    "100000000000000000000",
    "-9223372036854775809",
    "18446744073709551616",
    "36893488147419103232",
    "1" + "0" * 400,
    "-0",
    "-0.0",
    "1E5",
    "1e+05",
    "1e15",
    "1e16",
    "1e20",
    "12e-7",
    "0.1000000000000000055511151231257827",
    "123456789012345678901234567890.5",
    "1e308",
    "1e400",
    "-1E400",
    "1e-400",
    "-1e-400",
    "2.4703282292062327e-324",
    "36893488147419103232.0",
]
LITERAL_MARK = "@number "


def random_literal(random_):
    if random_.random() < 0.7:
        return LITERAL_MARK + random_.choice(NUMBER_LITERALS)
    digits = random_.choice("123456789") + "".join(
        random_.choice("0123456789") for _ in range(random_.randrange(60))
    )
    point = random_.choice(["", "", ".0", ".25"])
    exponent = random_.choice(["", "", "", "e", "E+", "e-"])
    if exponent:
        exponent += str(random_.randrange(340))
    return LITERAL_MARK + random_.choice(["", "-"]) + digits + point + exponent


def with_literals(line):
    return re.sub(f'"{LITERAL_MARK}([^"]*)"', r"\1", line)


def random_value(random_, depth=3):
    kind = random_.randrange(11 if depth > 0 else 8)
    if kind == 0:
        return None
    if kind == 1:
        return random_.choice([True, False])
    if kind == 2:
        return random_.choice([0, 1, -1, 7, 2**31, -(2**63), 2**63 - 1, 2**64 - 1, 10**15])
    if kind == 3 and random_.random() < 0.5:
        return random_literal(random_)
    if kind == 3:
        return random_.choice(
            [
                0.0,
                -0.0,
                1.0,
                1e16,
                1e15,
                1e-5,
                1e-4,
                0.1,
                123456789.125,
                -2.5e-10,
                1e22,
                1.7976931348623157e308,
                5e-324,
                random_.uniform(-1e6, 1e6),
                random_.random() * 10 ** random_.randrange(-20, 20),
            ]
        )
    if kind < 8:
        return random_text(random_, 4)
    if kind == 8:
        return [random_value(random_, depth - 1) for _ in range(random_.randrange(4))]
    return {
        (
            random_text(random_, 2)
            if random_.random() < 0.5
            else random_.choice(["a", "type", "items"])
        ): random_value(random_, depth - 1)
        for _ in range(random_.randrange(4))
    }


def maybe(random_, chance, good, other):
    return good() if random_.random() < chance else other()


def random_name(random_):
    return random_.choice(["get_weather", "search", "f", "<|user|>", "读"])


def random_tool(random_):
    function = {
        "name": random_name(random_),
        "description": random_text(random_, 5),
        "parameters": random_value(random_),
    }
    if random_.random() < 0.3:
        function["defer_loading"] = random_.choice([True, False, None, 0, 1, "", "no"])
    if random_.random() < 0.3:
        function["strict"] = True
    if random_.random() < 0.2:
        del function["name"]
    if random_.random() < 0.2:
        function[random_text(random_, 2)] = random_value(random_)
    return maybe(random_, 0.6, lambda: {"type": "function", "function": function}, lambda: function)


def random_part(random_):
    return random_.choice(
        [
            lambda: {"type": "text", "text": random_text(random_, 5)},
            lambda: {"type": "text", "text": random_value(random_)},
            lambda: {"type": "text"},
            lambda: random_text(random_, 4),
            lambda: {
                "type": random_.choice(
                    [
                        "image",
                        "image_url",
                        "video",
                        "video_url",
                        "audio",
                        "audio_url",
                        "input_audio",
                        "other",
                    ]
                ),
                "image_url": {"url": "x"},
            },
            lambda: random_value(random_),
        ]
    )()


def random_content(random_):
    def thinking():
        return "".join(
            random_.choice(["<think>", "</think>", " ", "\n", "\u001f", "\u3000", "ab", "é"])
            for _ in range(random_.randrange(9))
        )

    return random_.choice(
        [
            lambda: random_text(random_),
            lambda: random_text(random_),
            lambda: random_text(random_),
            thinking,
            thinking,
            lambda: [random_part(random_) for _ in range(random_.randrange(4))],
            lambda: random_value(random_),
        ]
    )()


def random_call(random_):
    function = {
        "name": maybe(random_, 0.95, lambda: random_name(random_), lambda: random_value(random_)),
        "arguments": maybe(
            random_,
            0.95,
            lambda: {
                random_text(random_, 2): random_value(random_) for _ in range(random_.randrange(4))
            },
            lambda: random_value(random_),
        ),
    }
    return random_.choice([function, {"type": "function", "id": "1", "function": function}])


def random_tool_content(random_):
    return random_.choice(
        [
            lambda: random_text(random_),
            lambda: random_content(random_),
            lambda: [
                {
                    "output": maybe(
                        random_, 0.9, lambda: random_text(random_), lambda: random_value(random_)
                    )
                }
                for _ in range(random_.randrange(1, 4))
            ],
            lambda: [
                {"type": "tool_reference", "name": random_name(random_)}
                for _ in range(random_.randrange(1, 3))
            ],
            lambda: [{"type": "tool_reference"}, random_value(random_)],
        ]
    )()


def random_message(random_):
    role = random_.choice(
        [
            "user",
            "user",
            "assistant",
            "assistant",
            "assistant",
            "tool",
            "tool",
            "system",
            "developer",
        ]
    )
    message = {"role": role}
    if role == "tool":
        message["content"] = random_tool_content(random_)
    elif random_.random() < 0.95:
        message["content"] = random_content(random_)
    if role == "assistant":
        if random_.random() < 0.4:
            message["reasoning_content"] = maybe(
                random_, 0.8, lambda: random_text(random_), lambda: random_value(random_)
            )
        if random_.random() < 0.4:
            message["tool_calls"] = maybe(
                random_,
                0.95,
                lambda: [random_call(random_) for _ in range(random_.randrange(4))],
                lambda: random_value(random_),
            )
    return maybe(random_, 0.98, lambda: message, lambda: random_value(random_))


def random_chat(random_):
    options = {}
    for name, values in (
        ("add_generation_prompt", [True, True, False, None, 1, "x", ""]),
        ("enable_thinking", [True, False, None, 0, "no", [], 0.0]),
        ("reasoning_effort", ["high", "max", "low", "High", None, 1, ["high"]]),
        ("clear_thinking", [True, False, None, 0, "false", {}]),
    ):
        if random_.random() < 0.5:
            options[name] = random_.choice(values)
    if random_.random() < 0.05:
        options["reasoning_content"] = random_value(random_)
    tools = random_.choice(
        [
            lambda: None,
            lambda: None,
            lambda: [],
            lambda: [random_tool(random_) for _ in range(random_.randrange(4))],
            lambda: [random_tool(random_) for _ in range(random_.randrange(4))],
            lambda: maybe(
                random_, 0.8, lambda: [random_tool(random_)], lambda: random_value(random_)
            ),
        ]
    )()
    messages = maybe(
        random_,
        0.99,
        lambda: [random_message(random_) for _ in range(random_.randrange(6))],
        lambda: random_value(random_),
    )
    return {"messages": messages, "tools": tools, "options": options}


def template_of(path):
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, ensure_ascii=False: json.dumps(
        value, ensure_ascii=ensure_ascii
    )
    with open(path, encoding="utf-8") as file:
        return environment.from_string(file.read())


def compare_chats(comparison, program, folder, chats):
    template = template_of(os.path.join(folder, "chat_template.jinja"))
    reference = tokenizers.Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    lines = [with_literals(dump(chat)) for chat in chats]
    rendered = through(program, ["render", folder, "--reference"], lines)
    ids = through(program, ["render", folder, "--ids", "--reference"], lines)
    refused = 0
    for line, got, got_ids in zip(lines, rendered, ids):
        chat = json.loads(line)
        try:
            wanted = template.render(
                messages=chat["messages"], tools=chat["tools"], **chat["options"]
            )
        except (jinja2.TemplateError, TypeError) as failure:
            refused += 1
            if not isinstance(got, dict):
                comparison.check("refusal", chat, got, repr(failure))
            continue
        comparison.check("render", chat, got, wanted)
        comparison.check(
            "render --ids", chat, got_ids, reference.encode(wanted, add_special_tokens=False).ids
        )
    print(f"{len(chats)} chats rendered, {refused} of them refused by both")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("folder")
    parser.add_argument(
        "--optional",
        default=os.environ.get("GLMD_TEST_TOKENIZER"),
        help="another tokenizer.json.gz, used where it exists",
    )
    parser.add_argument("--strings", type=int, default=20000)
    parser.add_argument("--added", type=int, default=50, help="sets of added tokens")
    parser.add_argument("--chats", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1000000)
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    random_ = random.Random(options.seed)
    comparison = Comparison()
    own = os.path.join(options.folder, "tokenizer.json")
    texts = [random_text(random_) for _ in range(options.strings)]
    compare_tokens(comparison, options.program, own, texts, random_)
    print(f"{len(texts)} texts")
    if options.optional and os.path.exists(options.optional):
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            with gzip.open(options.optional) as packed:
                shutil.copyfileobj(packed, file)
            file.flush()
            compare_tokens(comparison, options.program, file.name, texts, random_)
            print(f"{options.optional}: {len(texts)} texts")
    compare_added_tokens(
        comparison, options.program, own, random_, options.added, options.strings // 40
    )
    compare_all_code_points(comparison, options.program, own)
    compare_chats(
        comparison,
        options.program,
        options.folder,
        [random_chat(random_) for _ in range(options.chats)],
    )
    if comparison.failures:
        print(f"{comparison.failures} differences")
    return 1 if comparison.failures else 0


if __name__ == "__main__":
    sys.exit(main())
