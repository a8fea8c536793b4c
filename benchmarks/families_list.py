"""The architectures of `families.py`: tiny configurations with every kind of layer that the real models have."""

from __future__ import annotations

from typing import Any

WINDOW = 12
COMMON: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "pad_token_id": None, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
MOE: dict[str, Any] = {
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "decoder_sparse_step": 1,
}  # fmt: skip
MLA: dict[str, Any] = {
    "q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16,
    "head_dim": 8, "n_group": 1, "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1,
    "num_key_value_heads": 4,
}  # fmt: skip
MAMBA: dict[str, Any] = {
    "mamba_d_state": 8, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_n_heads": 8, "mamba_d_head": 16,
    "mamba_n_groups": 1, "mamba_chunk_size": 16,
}  # fmt: skip
DELTA: dict[str, Any] = {
    "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 4, "linear_num_value_heads": 4,
    "linear_conv_kernel_dim": 4, "head_dim": 16,
}  # fmt: skip
ALTERNATING = ["sliding_attention", "full_attention"] * 2
LONGROPE: dict[str, Any] = {
    "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 8, "long_factor": [4.0] * 8,
    "original_max_position_embeddings": 32,
}  # fmt: skip

FAMILIES: list[tuple[str, str, dict[str, Any]]] = [
    ("Llama", "llama", {}),
    ("Llama, rope scaled with length", "llama", {
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}, "max_position_embeddings": 40}),
    ("Llama, biases", "llama", {"attention_bias": True, "mlp_bias": True}),
    ("Llama 4", "llama4_text", {
        "attention_chunk_size": WINDOW, "num_local_experts": 2, "interleave_moe_layer_step": 2, "head_dim": 16,
        "intermediate_size_mlp": 96, "num_experts_per_tok": 1}),
    ("Mistral, window", "mistral", {"sliding_window": WINDOW}),
    ("Mistral, no window", "mistral", {"sliding_window": None}),
    ("Mixtral, window", "mixtral", {**MOE, "sliding_window": WINDOW}),
    ("Ministral", "ministral", {"sliding_window": WINDOW, "layer_types": ALTERNATING, "head_dim": 16}),
    ("Ministral 3", "ministral3", {"head_dim": 16}),
    ("Qwen 2", "qwen2", {}),
    ("Qwen 2, window", "qwen2", {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2}),
    ("Qwen 2 MoE", "qwen2_moe", MOE),
    ("Qwen 3", "qwen3", {"head_dim": 16}),
    ("Qwen 3 MoE", "qwen3_moe", {**MOE, "head_dim": 16}),
    ("Qwen3-Next", "qwen3_next", {**MOE, **DELTA}),
    ("Qwen 3.5", "qwen3_5_text", DELTA),
    ("Qwen 3.5 MoE", "qwen3_5_moe_text", {**MOE, **DELTA}),
    ("Gemma", "gemma", {"head_dim": 16}),
    ("Gemma 2", "gemma2", {
        "head_dim": 16, "sliding_window": WINDOW, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 3.0,
        "final_logit_softcapping": 2.0}),
    ("Gemma 3", "gemma3_text", {"head_dim": 16, "sliding_window": WINDOW, "layer_types": ALTERNATING}),
    ("Gemma 3n", "gemma3n_text", {
        "head_dim": 16, "sliding_window": WINDOW, "layer_types": ALTERNATING, "num_kv_shared_layers": 0,
        "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 97, "laurel_rank": 8,
        "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0], "intermediate_size": [96] * 4}),
    ("Phi", "phi", {"num_key_value_heads": 4}),
    ("Phi-3, window", "phi3", {"sliding_window": WINDOW}),
    ("Phi-3, long rope", "phi3", {
        "rope_parameters": LONGROPE, "original_max_position_embeddings": 32, "sliding_window": None}),
    ("Phi-3.5 MoE", "phimoe", {**MOE, "sliding_window": None}),
    ("OLMo", "olmo", {}),
    ("OLMo 2", "olmo2", {}),
    ("OLMo 3", "olmo3", {"sliding_window": WINDOW, "layer_types": ALTERNATING}),
    ("OLMoE", "olmoe", MOE),
    ("Cohere", "cohere", {"logit_scale": 0.25}),
    ("Cohere 2", "cohere2", {"sliding_window": WINDOW, "layer_types": ALTERNATING, "logit_scale": 0.25}),
    ("gpt-oss", "gpt_oss", {**MOE, "sliding_window": WINDOW, "layer_types": ALTERNATING, "head_dim": 16}),
    ("EXAONE 4", "exaone4", {"sliding_window": WINDOW, "sliding_window_pattern": "LG", "layer_types": ALTERNATING}),
    ("GLM", "glm", {"head_dim": 16}),
    ("GLM-4", "glm4", {"head_dim": 16}),
    ("GLM-4.5 MoE", "glm4_moe", {**MOE, **MLA, "head_dim": 16, "num_key_value_heads": 2}),
    ("Granite", "granite", {"logits_scaling": 4.0, "attention_multiplier": 0.2, "residual_multiplier": 0.5}),
    ("Granite MoE", "granitemoe", {**MOE, "logits_scaling": 4.0, "attention_multiplier": 0.2}),
    ("Granite 4 hybrid", "granitemoehybrid", {
        **MOE, **MAMBA, "layer_types": ["mamba", "attention"] * 2, "shared_intermediate_size": 32,
        "logits_scaling": 4.0, "attention_multiplier": 0.2}),
    ("LFM2", "lfm2", {"layer_types": ["conv", "conv", "full_attention", "conv"]}),
    ("LFM2 MoE", "lfm2_moe", {**MOE, "layer_types": ["conv", "conv", "full_attention", "conv"], "num_dense_layers": 1}),
    ("SmolLM 3", "smollm3", {}),
    ("StableLM", "stablelm", {}),
    ("StarCoder 2, window", "starcoder2", {"sliding_window": WINDOW}),
    ("GPT-2", "gpt2", {"n_embd": 64, "n_head": 4, "n_layer": 4, "n_positions": 512}),
    ("GPT-Neo, local attention", "gpt_neo", {
        "num_layers": 4, "num_heads": 4, "attention_types": [[["global", "local"], 2]], "window_size": WINDOW}),
    ("GPT-J", "gptj", {"n_embd": 64, "n_head": 4, "n_layer": 4, "n_positions": 512, "rotary_dim": 8}),
    ("GPT-NeoX", "gpt_neox", {}),
    ("OPT", "opt", {"ffn_dim": 96, "word_embed_proj_dim": 64}),
    ("BLOOM", "bloom", {"n_layer": 4, "n_head": 4}),
    ("Falcon", "falcon", {"new_decoder_architecture": True, "num_kv_heads": 2}),
    ("Falcon, ALiBi", "falcon", {"alibi": True, "multi_query": False}),
    ("Falcon-H1", "falcon_h1", {**MAMBA, "mamba_d_ssm": 128, "lm_head_multiplier": 0.5}),
    ("Mamba", "mamba", {"state_size": 8}),
    ("Mamba 2", "mamba2", {"state_size": 8, "num_heads": 8, "head_dim": 16, "n_groups": 1, "chunk_size": 16}),
    ("Bamba", "bamba", {**MAMBA, "attn_layer_indices": [1, 3]}),
    ("Zamba 2", "zamba2", {
        "mamba_d_state": 8, "n_mamba_heads": 8, "mamba_ngroups": 1, "attention_head_dim": 32, "chunk_size": 16,
        "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"], "num_key_value_heads": 4, "num_mem_blocks": 1,
        "adapter_rank": 8}),
    ("Jamba", "jamba", {
        **MOE, "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 8, "mamba_dt_rank": 4,
        "use_mamba_kernels": False}),
    ("Nemotron-H", "nemotron_h", {
        "layers_block_type": ["mamba", "attention", "mlp", "mamba"], "mamba_num_heads": 8, "mamba_head_dim": 16,
        "ssm_state_size": 8, "n_groups": 1, "chunk_size": 16, "head_dim": 16}),
    ("RecurrentGemma", "recurrent_gemma", {
        "attention_window_size": WINDOW, "lru_width": 64, "block_types": ["recurrent", "recurrent", "attention"]}),
    ("DeepSeek V2", "deepseek_v2", {**MOE, **MLA}),
    ("DeepSeek V3", "deepseek_v3", {**MOE, **MLA}),
    ("MiniMax", "minimax", {
        **MOE, "layer_types": ["linear_attention", "full_attention"] * 2, "block_size": 16, "head_dim": 16}),
    ("MiniMax M2", "minimax_m2", {**MOE, "head_dim": 16}),
    ("MiniCPM 3", "minicpm3", {**MLA}),
    ("Nemotron", "nemotron", {}),
    ("Seed-OSS", "seed_oss", {"head_dim": 16}),
    ("ERNIE 4.5", "ernie4_5", {"head_dim": 16}),
    ("ERNIE 4.5 MoE", "ernie4_5_moe", {**MOE, "moe_num_experts": 4, "moe_k": 2, "moe_num_shared_experts": 1}),
    ("HunYuan", "hunyuan_v1_dense", {"head_dim": 16}),
    ("HunYuan MoE", "hunyuan_v1_moe", {**MOE, "head_dim": 16, "moe_topk": 2}),
    ("dots.llm1", "dots1", {**MOE, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "n_shared_experts": 1,
        "sliding_window": WINDOW, "layer_types": ALTERNATING}),
    ("Arcee", "arcee", {}),
    ("Apertus", "apertus", {}),
    ("HyperCLOVA X", "hyperclovax", {"logits_scaling": 4.0, "attention_multiplier": 0.2, "head_dim": 16}),
    ("BitNet", "bitnet", {}),
    ("Helium", "helium", {"head_dim": 16}),
    ("DiffLlama", "diffllama", {}),
    ("VaultGemma", "vaultgemma", {"head_dim": 16, "sliding_window": WINDOW, "layer_types": ALTERNATING}),
    ("nanochat", "nanochat", {}),
    ("CWM", "cwm", {"sliding_window": WINDOW, "layer_types": ALTERNATING, "head_dim": 16}),
]  # fmt: skip
