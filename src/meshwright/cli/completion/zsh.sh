#compdef meshwright
_meshwright() {
    local -a found
    found=(${(f)"$(meshwright completion zsh "${(@)words[1,CURRENT]}" 2>/dev/null)"})
    if (( $#found )); then compadd -a found; else _files; fi
}
if [ "$funcstack[1]" = "_meshwright" ]; then _meshwright "$@"; else compdef _meshwright meshwright; fi
