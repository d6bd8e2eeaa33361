playbook() {  # playbook FILE PATH STEP...: steps in sequence, each of which returns its name
    local file=$1 path=$2 previous=""
    shift 2
    printf 'apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: %s, path: %s}\nworkload: {day: "2026-01-01", slot: {}}\nworkflow:\n' \
        "$(basename "$path")" "$path" > "$file"
    for step in "$@"; do
        [ -z "$previous" ] || printf '    next: {arcs: [{step: %s}]}\n' "$step" >> "$file"
        printf '  - step: %s\n    tool: {name: work, kind: python, code: "%s"}\n' "$step" "${CODE:-result = '$step'}" >> "$file"
        previous=$step
    done
}
servers() {
    noetl server start --background && noetl worker start --background
}
begin() {  # begin NAME: run NAME.yaml in the background, and return when it runs
    (setsid noetl run "$1.yaml" > /dev/null 2>&1 & echo $! > "$1.pid")
    until noetl status last --json 2> /dev/null | grep -q '"path":"'"$1"'","status":"running"\|"path": "'"$1"'"'; do sleep 0.1; done
}
