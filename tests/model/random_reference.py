#!/usr/bin/env python3
"""Compares glmd-eval with transformers itself on small models of random shape.

Each seed draws a configuration (widths that fit no kernel tile, groups of experts, full and shared
indexers, storage types, fused or split experts), gives it random weights, and takes logits and a
greedy continuation from `GlmMoeDsaForCausalLM` in float32. The container is made with both policies
`exact`; every logit must lie within 2e-3 + 1e-3 |logit|. Prompts are drawn until no top-k of an
indexer or router is decided by less than 2e-5, where any two correct engines may differ; a shape
for which none is found is reported as a tie and does not count.

Needs `torch` and `transformers==5.24.0`, which no other test does, and is therefore run by hand:
    python3 tests/model/random_reference.py --programs build/release/bin --seeds 1-20
"""

import argparse
import json
import math
import pathlib
import random
import subprocess
import sys
import tempfile

import numpy
import torch
from safetensors.torch import save_file
from transformers import GlmMoeDsaConfig, GlmMoeDsaForCausalLM

LATENT_NORM_EPS = 1e-5  # that of released checkpoints; the reference's own default is 1e-6
GAP_MIN = 2e-5
PROMPTS_MAX = 400
GREEDY_COUNT = 12


class TopKGaps:
    """Notes by how much the last chosen of each top-k beat the first one left out."""

    def __init__(self):
        self.gaps = []
        self.original = torch.Tensor.topk
        torch.Tensor.topk = torch.topk = self.topk_of()

    def topk_of(self):
        def topk(values, k, *args, **keywords):
            if k < values.shape[-1]:
                ordered = values.sort(dim=-1, descending=True)[0]
                gap = (ordered[..., k - 1] - ordered[..., k])[ordered[..., k] > -1e30]
                if gap.numel():
                    self.gaps.append(float(gap.min()))
            return self.original(values, k, *args, **keywords)

        return topk

    def take(self):
        least = min(self.gaps, default=math.inf)
        self.gaps.clear()
        return least


def draw_config(draw):
    layers = draw.randint(2, 6)
    rope = draw.choice([4, 8, 16, 32, 64])
    experts, groups = draw.choice([8, 12, 16, 32]), draw.choice([1, 1, 2, 4])
    groups_kept = draw.randint(1, groups)
    heads = draw.choice([1, 2, 3, 4, 6])
    config = dict(
        vocab_size=draw.choice([97, 128, 300, 515]),
        hidden_size=draw.choice([40, 64, 96, 130, 160, 256]),
        intermediate_size=draw.choice([50, 96, 160, 288]),
        moe_intermediate_size=draw.choice([24, 40, 64, 96]),
        num_hidden_layers=layers,
        first_k_dense_replace=draw.randint(0, min(2, layers - 1)),
        num_attention_heads=heads,
        num_key_value_heads=heads,
        n_shared_experts=draw.choice([1, 1, 2]),
        n_routed_experts=experts,
        n_group=groups,
        topk_group=groups_kept,
        num_experts_per_tok=draw.randint(1, min(4, experts // groups * groups_kept)),
        norm_topk_prob=draw.choice([True, True, False]),
        routed_scaling_factor=draw.choice([1.0, 1.5, 2.5]),
        kv_lora_rank=draw.choice([16, 24, 32, 72, 128]),
        q_lora_rank=draw.choice([20, 32, 64, 96]),
        qk_rope_head_dim=rope,
        qk_nope_head_dim=draw.choice([8, 13, 32, 48, 64]),
        v_head_dim=draw.choice([10, 16, 33, 64]),
        index_topk=draw.choice([8, 17, 40, 2048]),
        index_n_heads=draw.choice([4, 5, 8, 16]),
        index_head_dim=rope + draw.choice([0, 1, 16, rope]),
        max_position_embeddings=4096,
        rms_norm_eps=draw.choice([1e-5, 1e-6]),
        rope_parameters={"rope_type": "default", "rope_theta": draw.choice([1e4, 1e6, 8e6])},
        bos_token_id=0,
        eos_token_id=[1, 2],
        pad_token_id=0,
    )
    kinds = ["full"] + [draw.choice(["full", "shared"]) for _ in range(layers - 1)]
    indexers = draw.choice([
        {},
        {"indexer_types": kinds},
        {"index_topk_pattern": "".join(kind[0].upper() for kind in kinds)},
        {"index_topk_freq": draw.randint(1, 4), "index_skip_topk_offset": draw.randint(1, 3)},
    ])
    return config, indexers


def make_model(config, indexers, dtype):
    reference = GlmMoeDsaConfig(**config, **indexers)
    reference._attn_implementation = reference._experts_implementation = "eager"
    model = GlmMoeDsaForCausalLM(reference).eval()
    for name, tensor in model.state_dict().items():
        noise = torch.randn_like(tensor)
        if "e_score_correction_bias" in name:
            tensor.copy_(0.1 * noise)
            continue
        if "norm" in name:
            noise = 0.1 * noise if name.endswith("bias") else 1 + 0.2 * noise
        elif "embed" not in name:
            noise *= 1.3 / math.sqrt(tensor.shape[-1])
        tensor.copy_(noise.to(dtype).float())
    for name, module in model.named_modules():
        if name.endswith(("q_a_layernorm", "kv_a_layernorm")):
            module.variance_epsilon = LATENT_NORM_EPS
    return model


def split_experts(name, tensor):
    prefix, kind = name.rsplit(".", 1)
    for expert, weights in enumerate(tensor):
        if kind == "down_proj":
            yield f"{prefix}.{expert}.down_proj.weight", weights
        else:
            gate, up = weights.chunk(2)
            yield f"{prefix}.{expert}.gate_proj.weight", gate
            yield f"{prefix}.{expert}.up_proj.weight", up


def save_checkpoint(folder, model, config, indexers, dtype, is_fused):
    tensors = {}
    for name, tensor in model.state_dict().items():
        stored = tensor if "e_score_correction_bias" in name else tensor.to(dtype)
        is_expert = name.endswith(("experts.gate_up_proj", "experts.down_proj"))
        parts = split_experts(name, stored) if is_expert and not is_fused else [(name, stored)]
        tensors.update((part, values.contiguous().clone()) for part, values in parts)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    text = json.dumps({"model_type": "glm_moe_dsa", **config, **indexers})
    (folder / "config.json").write_text(text)


def draw_prompt(draw, model, vocabulary, gaps):
    length = draw.choice([5, 33, 48, 64, 90])
    for _ in range(PROMPTS_MAX):
        ids = [draw.randrange(3, vocabulary) for _ in range(length)]
        gaps.take()
        logits = model(torch.tensor([ids])).logits[0].float().numpy()
        if gaps.take() > GAP_MIN:
            return ids, logits
    return None, None


def continue_greedily(model, ids, gaps):
    ids, chosen = list(ids), []
    for _ in range(GREEDY_COUNT):
        gaps.take()
        best = int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax())
        if gaps.take() < GAP_MIN:
            break
        ids.append(best)
        chosen.append(best)
    return chosen


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}: {done.returncode}\n{done.stderr}")
    return done.stdout


def check(seed, programs, gaps):
    draw = random.Random(seed)
    torch.manual_seed(seed)
    config, indexers = draw_config(draw)
    dtype = draw.choice([torch.bfloat16, torch.float16, torch.float32])
    is_fused = draw.choice([True, False])
    model = make_model(config, indexers, dtype)
    ids, wanted = draw_prompt(draw, model, config["vocab_size"], gaps)
    if ids is None:
        print(f"seed {seed}: every prompt has a tie")
        return True
    greedy = continue_greedily(model, ids, gaps)

    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        container, prompt, output = folder / "container", folder / "ids.json", folder / "logits.f32"
        save_checkpoint(folder, model, config, indexers, dtype, is_fused)
        prompt.write_text(json.dumps(ids))
        run(programs / "glmd-convert", "--experts", "exact", "--dense", "exact", folder, container)
        evaluate = [programs / "glmd-eval", "--model", container, "--ids", prompt]
        run(*evaluate, "--logits", output)
        got = numpy.fromfile(output, "<f4").reshape(wanted.shape)
        continued = json.loads(run(*evaluate, "--greedy", GREEDY_COUNT))[: len(greedy)]
    share = (abs(got - wanted) / (2e-3 + 1e-3 * abs(wanted))).max()
    is_good = share <= 1 and continued == greedy
    print(f"seed {seed}: {len(ids)} ids, {dtype}, {share:.4f} of the bound, "
          f"{len(greedy)} greedy ids {'equal' if continued == greedy else 'DIFFER'}"
          f"{'' if is_good else '  <-- WRONG'}")
    return is_good


def main():
    parser = argparse.ArgumentParser(description="glmd-eval against transformers on random shapes")
    parser.add_argument("--programs", type=pathlib.Path, required=True)
    parser.add_argument("--seeds", default="1-20", help="FIRST-LAST")
    arguments = parser.parse_args()
    first, last = map(int, arguments.seeds.split("-"))
    gaps = TopKGaps()
    torch.set_num_threads(1)
    with torch.no_grad():
        results = [check(seed, arguments.programs, gaps) for seed in range(first, last + 1)]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
