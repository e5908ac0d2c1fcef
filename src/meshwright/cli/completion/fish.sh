function __meshwright_complete
    set -l current (commandline -ct)
    meshwright completion fish (commandline -opc) "$current" 2>/dev/null
end
complete -c meshwright -a '(__meshwright_complete)'
