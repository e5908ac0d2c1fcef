"""The names of settings that programs know, a file each: what is none of them may be misspelt."""
