_meshwright() {
    local IFS=$'\n'
    COMPREPLY=($(meshwright completion bash "${COMP_WORDS[@]:0:COMP_CWORD+1}" 2>/dev/null))
}
complete -o default -F _meshwright meshwright
