"""Megatron-LM's arguments, written from a setup and read into one: of a shell script, a list or
YAML, also that of a Megatron-Bridge recipe, which has the same names."""
