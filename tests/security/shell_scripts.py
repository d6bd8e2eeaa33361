"""More commands of the class "shell values": scripts, files, variables and descriptors that the command itself makes.

`⏎` stands for a line break."""

COMMANDS = [
    command.replace("⏎", "\n")
    for command in r"""
echo {{ x }} > t; [[ $(cat t) -gt 1 ]] || true
echo {{ x }} | tee t; [[ $(< t) -gt 1 ]] || true
y={{ x }}; PS4=$y; set -x; true
y={{ x }}; PS4="$y"; set -x; :
y={{ x }}; BASH_ENV=$y bash -c :
y={{ x }}; export BASH_ENV=$y; bash -c :
echo {{ x }} > t; export BASH_ENV=t; bash -c :
y={{ x }}; export y; env > t; . ./t || true
y={{ x }}; export y; env | grep ^y > .env; source .env || true
bash -c 'PS4=$1; set -x; :' _ {{ x }}
bash /dev/stdin {{ x }} <<< 'eval "$1"'
echo 'eval "$1"' > t.sh; bash t.sh {{ x }}
echo 'eval "$1"' > t.sh; chmod +x t.sh; ./t.sh {{ x }}
cat > t.sh <<'E'⏎(( $1 ))⏎E⏎bash t.sh {{ x }}
printf 'eval "$1"' > t.sh; sh ./t.sh "{{ x }}"
echo 'import os,sys; os.system(sys.argv[1])' > t.py; python3 t.py {{ x }}
cat > t.py <<'E'⏎import os,sys⏎os.system(sys.argv[1])⏎E⏎python3 t.py {{ x }}
printf 'all:\n\t@echo $(Y)\n' > Makefile; export Y={{ x }}; make -s || true
echo {{ x }} > t; awk '{ system($0) }' t
echo {{ x }} > t; awk '{ print | "bash" }' t
y={{ x }}; { echo "#!/bin/sh"; echo "echo $y"; } > t; sh t
{ echo "#!/bin/sh"; echo "echo {{ x }}"; } > t; chmod +x t; ./t
exec 3<<< {{ x }}; read -u 3 y; eval "$y"
exec 3<<< {{ x }}; read -ru3 y; (( y )) || true
printf '%s\n' {{ x }} > /dev/shm/nattk; sh /dev/shm/nattk; rm /dev/shm/nattk
F=a.sh; echo {{ x }} > $F; sh a.sh
F=a; echo {{ x }} > $F.sh; sh a.sh
echo {{ x }} > a; set -- a; sh $1
echo {{ x }} > a; sh $(ls)
echo {{ x }} > a; xargs -I% sh -c % < a || true
echo {{ x }} > a; cat a | xargs -I% sh -c 'echo %' || true
echo {{ x }} > a; awk "$(cat a)" /etc/hostname || true
echo {{ x }} > a; perl -ne 'system $_' a || true
echo {{ x }} > a; perl -pe 's/(.*)/`$1`/e' a || true
python3 -c 'import os,sys; getattr(os,"sys"+"tem")(sys.argv[1])' {{ x }}
perl -e 'while (<>) { print }' {{ x }} || true
perl -e 'print <>' {{ x }} || true
perl -e '@l = <ARGV>' {{ x }} || true
node -e 'new Function(process.argv[1])()' {{ x }} || true
tclsh <(echo 'eval [lindex $argv 0]') {{ x }} || true
y={{ x }}; typeset "v_$y=1" || true
declare "v_{{ x }}=1" || true
printf -v "v_{{ x }}" 1 || true
read "v_{{ x }}" <<< 1 || true
local_x() { local "v_$1=1"; }; local_x {{ x }} || true
cat <<A <<B | sh⏎a⏎A⏎{{ x }}⏎B
echo a >&{{ x }} || true
y={{ x }}; echo a >&"$y" || true
y={{ x }}; cat <&$y || true
echo {{ x }} > t; find . -type f -exec sh {} +
echo {{ x }} > t; for f in $(ls); do sh $f; done
echo {{ x }} > t; ls | while read f; do sh $f; done
echo {{ x }} > t; while read f; do sh $f; done < <(ls)
echo {{ x }} > t; f=$(ls); sh $f
echo {{ x }} > t; run() { "$@"; }; run sh t
echo {{ x }} > a; tar cf a.tar a; tar xOf a.tar | sh
echo {{ x }} > a; zip -q a.zip a; unzip -p a.zip | sh || true
cat > run.sh <<'E'⏎while read l; do eval "$l"; done⏎E⏎echo {{ x }} | bash run.sh
cat > run.sh <<'E'⏎read n; echo $((n))⏎E⏎bash run.sh <<< {{ x }}
cat > run.sh <<'E'⏎eval "$(cat)"⏎E⏎chmod +x run.sh; echo {{ x }} | ./run.sh
cat > run.sh <<'E'⏎n=$1⏎echo $((n+1))⏎E⏎bash run.sh {{ x }}
cat > run.sh <<'E'⏎(( $N > 1 ))⏎E⏎N={{ x }} bash run.sh || true
cat > run.py <<'E'⏎import sys, os⏎os.system(sys.stdin.read())⏎E⏎echo {{ x }} | python3 run.py
cat > run.py <<'E'⏎import os⏎os.system(os.environ["N"])⏎E⏎N={{ x }} python3 run.py
cat > f.awk <<'E'⏎{ system($0) }⏎E⏎echo {{ x }} | awk -f f.awk
cat > f.sed <<'E'⏎s/.*/&/e⏎E⏎echo {{ x }} | sed -f f.sed
echo eval '"$1"' > r.sh; bash r.sh {{ x }}
echo eval \"\$1\" > r.sh; bash r.sh {{ x }}
echo 'f() { eval "$1"; }' > lib.sh; . ./lib.sh; f {{ x }}
cat > lib.sh <<'E'⏎f() { (( $1 )); }⏎E⏎source lib.sh⏎f {{ x }} || true
""".strip().split("\n")
]
