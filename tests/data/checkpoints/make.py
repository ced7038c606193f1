#!/usr/bin/env python3
"""Makes the folders beside this script: tiny random models and the logits of the reference library.

python3 -m venv v && v/bin/pip install torch transformers && v/bin/python make.py
Each folder: config.json and model.safetensors as the library writes them (bfloat16,
which the logits are computed from in float32), tokens.json,
logits.f32 (little-endian float32, a row of the vocabulary a token). Attention is "eager".
"""
import json
import os
import shutil
import sys

import numpy as np
import torch
import transformers as tf

HERE = os.path.dirname(os.path.abspath(__file__))
COMMON = dict(vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
              num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
              bos_token_id=1, eos_token_id=2, pad_token_id=0, tie_word_embeddings=False,
              attn_implementation="eager")
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64)


def models():
    yield "llama-yarn", tf.LlamaConfig(**COMMON, rope_parameters=dict(YARN, rope_theta=10000.0))
    yield "llama-linear", tf.LlamaConfig(
        **COMMON, rope_parameters=dict(rope_type="linear", factor=2.5, rope_theta=10000.0))
    yield "llama-dynamic", tf.LlamaConfig(
        **COMMON, rope_parameters=dict(rope_type="dynamic", factor=2.0, rope_theta=10000.0))
    yield "llama-frequencies", tf.LlamaConfig(**COMMON, rope_parameters=dict(
        rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=64, rope_theta=500000.0))
    yield "mistral-window", tf.MistralConfig(**COMMON, sliding_window=8, head_dim=16)
    yield "qwen3-yarn", tf.Qwen3Config(
        **COMMON, head_dim=32, rope_parameters=dict(YARN, rope_theta=1000000.0))
    yield "gemma2", tf.Gemma2Config(**dict(COMMON, tie_word_embeddings=True), head_dim=24,
                                    query_pre_attn_scalar=24, sliding_window=8)
    yield "granite", tf.GraniteConfig(**COMMON, embedding_multiplier=6.0, residual_multiplier=0.3,
                                      attention_multiplier=0.11, logits_scaling=4.0)
    yield "olmo2", tf.Olmo2Config(**COMMON)
    yield "glm4", tf.Glm4Config(**COMMON, head_dim=32, partial_rotary_factor=0.5,
                                attention_bias=True)
    moe = dict(COMMON, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=32)
    yield "qwen2-moe", tf.Qwen2MoeConfig(**moe, shared_expert_intermediate_size=48,
                                         norm_topk_prob=False, decoder_sparse_step=1)
    yield "deepseek-v3-yarn", tf.DeepseekV3Config(
        **dict(COMMON, num_key_value_heads=4, num_hidden_layers=3), kv_lora_rank=32, q_lora_rank=48,
        qk_rope_head_dim=16, qk_nope_head_dim=24, v_head_dim=16, n_routed_experts=8,
        num_experts_per_tok=2, n_group=4, topk_group=2, n_shared_experts=1, moe_intermediate_size=32,
        first_k_dense_replace=1, routed_scaling_factor=1.5, norm_topk_prob=True,
        rope_parameters=dict(YARN, rope_theta=10000.0, mscale=1.0, mscale_all_dim=0.7, beta_fast=32,
                             beta_slow=1))
    yield "gpt-oss-yarn", tf.GptOssConfig(
        **COMMON, head_dim=16, num_local_experts=4, num_experts_per_tok=2, sliding_window=8,
        rope_parameters=dict(YARN, rope_theta=150000.0, beta_fast=32.0, beta_slow=1.0,
                             truncate=False))
    yield "bert", tf.BertConfig(vocab_size=96, hidden_size=64, intermediate_size=96,
                                num_hidden_layers=2, num_attention_heads=4,
                                max_position_embeddings=64, attn_implementation="eager")


def randomize(model, seed):
    """Weights large enough that every part matters; norms and biases away from their defaults."""
    gen = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        scale = 0.12 if p.dim() > 1 else 0.25
        noise = torch.randn(p.shape, generator=gen) * scale
        norm = "norm" in name.lower() and name.endswith("weight")
        base = 0.0 if ("gemma" in type(model).__name__.lower() or not norm) else 1.0
        p.data = noise + base
    for name, b in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            b.data = torch.randn(b.shape, generator=gen) * 0.1


def main(only):
    for seed, (name, config) in enumerate(models()):
        if only and name not in only:
            continue
        folder = os.path.join(HERE, name)
        shutil.rmtree(folder, ignore_errors=True)
        cls = tf.AutoModel if name == "bert" else tf.AutoModelForCausalLM
        model = cls.from_config(config).float().eval()
        randomize(model, seed)
        model.to(torch.bfloat16).save_pretrained(folder)
        # Read back: the cast has rounded rotary tables too.
        model = cls.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        extra = os.path.join(folder, "generation_config.json")
        if os.path.exists(extra):
            os.remove(extra)  # it only repeats token ids
        rng = np.random.default_rng(seed)
        tokens = [int(t) for t in rng.integers(3, 96, 40)]
        with torch.no_grad():
            out = model(torch.tensor([tokens]))
        logits = out.last_hidden_state[0] if name == "bert" else out.logits[0]
        logits.numpy().astype("<f4").tofile(os.path.join(folder, "logits.f32"))
        with open(os.path.join(folder, "tokens.json"), "w") as f:
            json.dump({"tokens": tokens}, f)
        print(name, tuple(logits.shape), float(logits.std()), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1:])
