#!/usr/bin/env bash
# Arguments of Megatron-LM, planned by Meshwright.

MODEL=(
  --num-layers 4
  --hidden-size 64
  --num-attention-heads 8
  --seq-length 64
  --max-position-embeddings 64
  --vocab-size 512
  --ffn-hidden-size 128
  --swiglu
  --normalization RMSNorm
  --disable-bias-linear
  --untie-embeddings-and-output-weights
  --position-embedding-type rope
)

PARALLEL=(
  --tensor-model-parallel-size 2
  --pipeline-model-parallel-size 2
  --pipeline-model-parallel-layout 'Et|t*3L'
)

TRAINING=(
  --micro-batch-size 4
  --global-batch-size 16
  --bf16
  --optimizer adam
  --recompute-granularity full
  --recompute-method uniform
  --recompute-num-layers 1
)

# What is missing here (data, tokenizer, checkpoints) goes behind the script's name.
export CUDA_DEVICE_MAX_CONNECTIONS=1
# A rank that is told which it is by variables is started by START=python.
exec ${START:-torchrun} ${TORCHRUN:-} pretrain_gpt.py "${MODEL[@]}" "${PARALLEL[@]}" "${TRAINING[@]}" "$@"
