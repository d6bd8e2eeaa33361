"""More commands of the class "shell values": places that evaluate a value, and the ways on which it gets there.

One command per line; `⏎` stands for a line break."""

PLACES = r"""
docker exec c sh -c 'echo {{ x }}'
docker run --rm img bash -c {{ x }}
docker run -i img bash <<< {{ x }}
echo {{ x }} | docker exec -i c sh
docker exec c python3 -c 'print("{{ x }}")'
docker compose exec web sh -c "echo {{ x }}"
docker exec -e Y={{ x }} c sh -c 'eval $Y'
docker exec c bash -c '(( $1 ))' _ {{ x }}
kubectl exec pod -- sh -c "echo {{ x }}"
kubectl exec -i pod -- bash -s <<< {{ x }}
podman exec c sh -c 'echo {{ x }}'
RANDOM={{ x }}
SECONDS={{ x }}
LINENO={{ x }}
OPTIND={{ x }}
HISTCMD={{ x }}
SRANDOM={{ x }}
COLUMNS={{ x }}
TMOUT={{ x }}; read -t 0.01 a < /dev/null || true
export RANDOM={{ x }}
y={{ x }}; RANDOM=$y
printf -v RANDOM %s {{ x }}
read RANDOM <<< {{ x }}
for RANDOM in {{ x }}; do :; done
printf -v{{ x }} %s 1
printf -vy %s {{ x }}; (( y )) || true
printf -v 'y' %s {{ x }}; (( y )) || true
printf -v "y[0]" %s {{ x }}; (( y )) || true
printf -v 'a[{{ x }}]' %s 1
read -a{{ x }} <<< 1
read -ra {{ x }} <<< 1
read -r -p q {{ x }} <<< 1
read 'a[{{ x }}]' <<< 1
read -t {{ x }} y <<< 1
read -u {{ x }} y
mapfile -O {{ x }} y < /etc/hostname
mapfile -n {{ x }} y < /etc/hostname
mapfile -t {{ x }} < /etc/hostname
mapfile <<< {{ x }}; (( MAPFILE[0] )) || true
mapfile -t <<< {{ x }}; eval "${MAPFILE[0]}"
readarray <<< {{ x }}; eval "${MAPFILE[@]}"
[[ {{ x }} =~ (.*) ]]; (( BASH_REMATCH[1] )) || true
[[ {{ x }} =~ (.*) ]]; eval "${BASH_REMATCH[1]}"
[[ {{ x }} =~ .* ]] && eval "$BASH_REMATCH"
y={{ x }}; [[ $y =~ ^(.*)$ ]]; bash -c "${BASH_REMATCH[0]}"
: {{ x }}; eval $_
echo {{ x }}; (( $_ )) || true
true {{ x }}; eval "$_"
set -- {{ x }}; eval "${!#}"
set -- {{ x }}; echo $(( ${!#} ))
set -- {{ x }}; echo "${!1}"
set -- {{ x }}; echo "${1@P}"
set -- {{ x }}; echo "${@@P}"
set -- {{ x }}; echo "${*@P}"
set -- abc; echo ${1:{{ x }}}
set -- abc; echo ${1:0:{{ x }}}
set -- a b; echo ${*:{{ x }}:1}
n=y; y=abc; echo ${!n:{{ x }}}
y=abc; echo ${y:(-{{ x }})}
y=abc; echo ${y: -{{ x }}}
y=abc; echo ${y:1 + {{ x }}}
a=(1); a[ {{ x }} ]=1
a=(1); a[1 + {{ x }}]=2
a=(1); echo ${a[ {{ x }} ]}
a=(1); echo ${a[1 + {{ x }}]}
a=(1); echo ${a[{{ x }}]:-z}
a=(1); echo ${!a[{{ x }}]}
a=(1); echo ${a["{{ x }}"]}
a=(1); echo ${a['{{ x }}']}
a=(1); b=(1); echo ${a[b[{{ x }}]]}
a=([{{ x }}]=1)
declare -a a=([{{ x }}]=1)
declare -a a=([ {{ x }} ]=1)
a+=([{{ x }}]=1)
a=(1); y={{ x }}; echo ${a[ y ]}
a=(1); y={{ x }}; echo ${a[1 + y]}
a=(1); y={{ x }}; a[ y + 1 ]=3
y={{ x }}; a=([y]=1)
echo $(( ((1)) + {{ x }} ))
(( ((1)) + {{ x }} )) || true
(( (2*(1)) + {{ x }} )) || true
y={{ x }}; (( ((1)) + y )) || true
y={{ x }}; echo $(( (2*(1)) + y ))
y={{ x }}; echo $(( (1+(2)) * y ))
y={{ x }}; (( (1) , (y) )) || true
y={{ x }}; echo $((y⏎+ 1))
y={{ x }}; for ((i=0; i<(1); i+=y)); do break; done
for (( ; {{ x }} ; )); do break; done
let "a=1" "b={{ x }}" || true
let a=1 b={{ x }} || true
builtin let {{ x }} || true
declare +x -i y={{ x }}
declare -r -i y={{ x }}
declare -g -i y; y={{ x }}
typeset -g -i y; y={{ x }}
readonly -i y={{ x }}
declare -xi y; y={{ x }}
declare -ix y=1; y+={{ x }}
f() { local -i y=$1; }; f {{ x }}
f() { local -i y; y=$1; }; f {{ x }}
f() { declare -i y="$1"; }; f {{ x }}
declare -i y z; z={{ x }}
declare -i "y={{ x }}"
declare -i 'y'={{ x }}
declare "y={{ x }}"; (( y )) || true
export "y={{ x }}"; (( y )) || true
g() { local "y={{ x }}"; (( y )); }; g || true
readonly 'y={{ x }}'; (( y )) || true
export "y={{ x }}"; bash -c '(( y ))' || true
[[	{{ x }} -eq 1 ]] || true
if [[⏎ {{ x }} -gt 1 ]]; then :; fi
if [[ -n a &&⏎ {{ x }} -gt 1 ]]; then :; fi
y={{ x }}; if [[ -n $y &&⏎ $y -gt 3 ]]; then :; fi
y={{ x }}; [[	$y -eq 1 ]] || true
y={{ x }}; [[ ( $y -eq 1 ) ]] || true
y={{ x }}; [[ ! $y -eq 1 ]] || true
[[ $(echo {{ x }}) -eq 1 ]] || true
[[ a[{{ x }}] -eq 1 ]] || true
[[ -v a[{{ x }}] ]] || true
[[ ! -v {{ x }} ]] || true
[[ -n a && -v {{ x }} ]] || true
[ ! -v {{ x }} ] || true
test ! -v {{ x }} || true
[ -n a -a -v {{ x }} ] || true
y={{ x }}; [[ -v $y ]] || true
y={{ x }}; [[ -v a[$y] ]] || true
y={{ x }}; [[ ! -v "$y" ]] || true
unset -v {{ x }}
unset a b {{ x }}
unset a["{{ x }}"]
unset -n {{ x }}
y={{ x }}; unset "$y"
y={{ x }}; unset -v "$y"
y={{ x }}; unset a[$y]
y={{ x }}; printf -v "$y" 1
y={{ x }}; printf -v$y 1
y={{ x }}; read "$y" <<< 1
y={{ x }}; read -r -a "$y" <<< 1
y={{ x }}; export "$y"
y={{ x }}; export "$y"=1
y={{ x }}; echo "${!y-}"
y={{ x }}; echo "${!y:-z}"
y={{ x }}; echo "${y[0]@P}"
y=({{ x }}); echo "${y[@]@P}"
y={{ x }}; z=${y@P}
y={{ x }}; declare -n r="$y"; : $r
y={{ x }}; declare -g -n r="$y"; r=1
f() { declare -n r=$1; r=1; }; f {{ x }}
f() { local -n r="$1"; echo "$r"; }; f {{ x }}
f() { printf -v "$1" 1; }; f {{ x }}
f() { local n=$1; printf -v "$n" 1; }; f {{ x }}
f() { echo $(( $1 + $2 )); }; f 1 {{ x }}
f() ( eval "$1" ); f {{ x }}
f(){ eval "$1";};f {{ x }}
f () { eval "$1"; }; f {{ x }}
function f() { eval "$1"; }; f {{ x }}
my-func() { eval "$1"; }; my-func {{ x }}
a::b() { eval "$1"; }; a::b {{ x }}
f.g() { (( $1 )); }; f.g {{ x }}
f() { eval "$1"; }; if f {{ x }}; then :; fi
f() { eval "$1"; }; ! f {{ x }}
f() { eval "$1"; }; y=$(f {{ x }})
f() { eval "$1"; }; echo `f {{ x }}`
f() { eval "$1"; }; A=1 f {{ x }}
f() { eval "$1"; }; time f {{ x }}
f() { eval "$1"; }; if true; then f {{ x }}; fi
f() { eval "$1"; }; for i in 1; do f {{ x }}; done
f() { eval "$1"; }; while f {{ x }}; do break; done
f() { eval "$1"; }; case a in a) f {{ x }};; esac
f() { eval "$1"; }; { f {{ x }}; }
f() { eval "$1"; }; (f {{ x }})
f() { eval "$1"; }; echo a | f {{ x }}
f() { eval "$1"; }; f {{ x }} | cat
f() { eval "$1"; }; [[ a ]] && f {{ x }}
f() { eval "$1"; }; true && f {{ x }} || true
f() { eval "$1"; }; cat <(f {{ x }})
f() { eval "$1"; }; > /dev/null f {{ x }}
f() { eval "$1"; }; export -f f; bash -c 'f "$1"' _ {{ x }}
f() { eval "$1"; }; g() { f "$1"; }; g {{ x }}
f() { "$@"; }; f bash -c {{ x }}
f() { eval "$*"; }; f echo {{ x }}
f() { until "$@"; do break; done; }; f {{ x }} || true
f() { echo "$*" | sh; }; f {{ x }}
f() { sh -c "$*"; }; f {{ x }}
f() { bash <<< "$1"; }; f {{ x }}
f() { bash <<E⏎$1⏎E⏎}; f {{ x }}
f() { bash; }; f <<< {{ x }}
f() { eval "$(cat)"; }; echo {{ x }} | f
f() { read a; eval "$a"; }; f <<< {{ x }}
f() { while read l; do $l; done; }; echo {{ x }} | f || true
f() { read -r n; echo $((n)); }; echo {{ x }} | f
if true; then set -- {{ x }}; fi; (( $1 )) || true
{ set -- {{ x }}; eval "$1"; }
(set -- {{ x }}; eval "$1")
true && set -- {{ x }} && eval "$1"
{ bash; } <<< {{ x }}
( sh ) <<E⏎{{ x }}⏎E⏎
while :; do sh; break; done <<< {{ x }}
if :; then bash; fi <<< {{ x }}
bash<<<{{ x }}
bash <<<"echo a {{ x }}"
bash <<<'echo a '{{ x }}
sh <"a b" <<<"{{ x }}"
sh<<E⏎{{ x }}⏎E⏎
bash <<@@⏎echo {{ x }}⏎@@⏎
bash <<!!⏎echo {{ x }}⏎!!⏎
bash <<E%F⏎{{ x }}⏎E%F⏎
bash <<"A B"⏎echo {{ x }}⏎A B⏎
bash <<E'O'F⏎echo {{ x }}⏎EOF⏎
sh <<E\OF⏎echo {{ x }}⏎EOF⏎
python3 <<%%⏎print("{{ x }}")⏎%%⏎
cat <<@@ | bash⏎{{ x }}⏎@@⏎
source /dev/stdin <<E⏎{{ x }}⏎E⏎
. /dev/stdin <<< {{ x }}
source /dev/fd/0 <<< {{ x }}
bash /proc/self/fd/0 <<< {{ x }}
bash 3<<<{{ x }} <&3
exec bash <<< {{ x }}
python3 - {{ x }} <<'E'⏎import os,sys⏎os.system(sys.argv[1])⏎E⏎
perl - {{ x }} <<'E'⏎system($ARGV[0]);⏎E⏎
Y={{ x }} python3 <<'E'⏎import os⏎os.system(os.environ["Y"])⏎E⏎
Y={{ x }} bash <<'E'⏎eval "$Y"⏎E⏎
export Y={{ x }}⏎bash <<'E'⏎(( Y ))⏎E⏎
export Y={{ x }}⏎python3 <<'E'⏎import os⏎exec(os.environ["Y"])⏎E⏎
export Y={{ x }}; perl <<'E'⏎`$ENV{Y}`;⏎E⏎
bash -c 'printf -v "$1" 1' _ {{ x }}
bash -c 'read "$1" <<< 1' _ {{ x }}
bash -c 'declare "$1"=1' _ {{ x }}
bash -c 'unset "$1"' _ {{ x }}
bash -c 'test -v "$1"' _ {{ x }}
bash -c 'echo ${!1}' _ {{ x }}
bash -c 'echo ${1@P}' _ {{ x }}
bash -c 'trap "$1" EXIT' _ {{ x }}
bash -c '. "$1"' _ {{ x }}
bash -c 'a=([$1]=1)' _ {{ x }}
bash -c 'a[$1]=1' _ {{ x }}
bash -c 'a=b; echo ${a:$1}' _ {{ x }}
bash -c 'for ((i=$1;;)); do break; done' _ {{ x }}
bash -c 'let "$1"' _ {{ x }}
bash -c 'sh <<< "$1"' _ {{ x }}
bash -c 'echo "$1" | sh' _ {{ x }}
bash -c 'echo "$*" > f; . ./f' _ {{ x }}
bash -c 'shift; $1' _ a {{ x }}
bash -c 'f() { eval "$1"; }; f "$1"' _ {{ x }}
bash -c 'while (( $# )); do eval "$1"; shift; done' _ {{ x }}
bash -c 'awk "$1" /dev/null' _ {{ x }}
bash -c 'python3 -c "$1"' _ {{ x }}
bash -c 'y=$1; [[ $y -eq 1 ]]' _ {{ x }}
bash -c 'RANDOM=$1' _ {{ x }}
bash -c 'for y; do ((y)); done' _ {{ x }}
bash -c 'for y in "$@"; do eval $y; done' _ {{ x }}
bash -c 'y=("$@"); ((y[0]))' _ {{ x }}
bash -c 'read y <<< "$1"; ((y))' _ {{ x }}
bash -c 'eval "${!#}"' _ {{ x }}
bash -c 'eval "${@: -1}"' _ {{ x }}
\eval {{ x }}
"eval" {{ x }}
ev''al {{ x }}
E=eval; $E {{ x }}
${E:-eval} {{ x }}
$(echo eval) {{ x }}
b\ash -c {{ x }}
"ba"sh -c {{ x }}
/bin/ba?h -c {{ x }}
/bin/bas* -c {{ x }}
bash -"c" {{ x }}
bash $'-c' {{ x }}
bash -c -- {{ x }}
bash -lc {{ x }}
bash -ce {{ x }}
bash -co pipefail {{ x }}
bash --posix -c {{ x }}
bash --noprofile --norc -c 'echo {{ x }}'
exec -a z bash -c {{ x }}
env -i bash -c {{ x }}
env -u A bash -c {{ x }}
env -- bash -c {{ x }}
env -S bash\ -c {{ x }}
env --split-string="bash -c" {{ x }}
nice -5 bash -c {{ x }}
ionice -c3 bash -c {{ x }}
timeout -k 1 5 bash -c {{ x }}
timeout --signal=KILL 5s bash -c {{ x }}
setsid -w bash -c {{ x }}
command -p bash -c {{ x }}
builtin command bash -c {{ x }}
xargs -a /etc/hostname bash -c {{ x }}
xargs -a <(echo {{ x }}) -I% sh -c %
xargs -I% sh -c % <<< {{ x }}
printf '%s\0' {{ x }} | xargs -0 bash -c 'eval "$@"' _
printf '%s\0' {{ x }} | xargs -0 -n1 bash -c '(( $1 ))' _
echo {{ x }} | xargs -L1 bash -c 'echo $(( $1 ))' _
echo {{ x }} | xargs -I% env bash -c %
echo {{ x }} | xargs -I% find /etc/hostname -exec sh -c % ';'
find /etc/hostname -exec sh -c 'eval {{ x }}' _ {} +
find /etc/hostname -exec bash -c "echo {{ x }} \$0" {} ';'
find . -maxdepth 0 -exec sh -c '(( $1 ))' _ {{ x }} ';'
find . -maxdepth 0 -exec awk {{ x }} /dev/null ';'
su root -c {{ x }} < /dev/null || true
runuser -l root -c {{ x }} < /dev/null || true
flock lock -c {{ x }}
flock lock sh -c {{ x }}
script -qec {{ x }} /dev/null < /dev/null || true
rsync --rsync-path={{ x }} a h:b || true
rsync -a -e "ssh -i {{ x }}" a h:b || true
tar cf /dev/null --checkpoint=1 --checkpoint-action exec={{ x }} /etc/hostname || true
awk "NR=={{ x }}" /etc/hostname
awk '{print $'{{ x }}'}' /etc/hostname
awk '{ print | c }' c={{ x }} /etc/hostname || true
awk -v c={{ x }} '{ print c |& "sh" }' /etc/hostname || true
awk -v c={{ x }} '{ print c | "sh" }' /etc/hostname || true
Y={{ x }} awk 'BEGIN { while ((ENVIRON["Y"] | getline l) > 0) print l }'
awk -f- /etc/hostname <<< {{ x }}
awk --file=/dev/stdin /etc/hostname <<< {{ x }}
awk --file <(echo {{ x }}) /etc/hostname
echo {{ x }} | awk '{ "echo " $0 | getline y }'
echo {{ x }} | awk '{ cmd = "echo " $1; system(cmd) }'
sed "{{ x }}d" /etc/hostname
sed -n "{{ x }},5p" /etc/hostname
sed -n '/a/,/{{ x }}/p' /etc/hostname
sed -e "s,a,{{ x }}," /etc/hostname
sed "1s/.*/{{ x }}/;1e" /etc/hostname
sed "/./ s/.*/{{ x }}/e" /etc/hostname
sed 's/.*/'"{{ x }}"'/e' /etc/hostname
sed "y/a/{{ x }}/" /etc/hostname
sed "a {{ x }}" /etc/hostname
sed "1i\\⏎{{ x }}" /etc/hostname
sed -e 1d -e "c {{ x }}" /etc/hostname
sed --expression "s/a/{{ x }}/" /etc/hostname
sed -s -e {{ x }} /etc/hostname
sed -n -- {{ x }} /etc/hostname
sed --file=<(echo {{ x }}) /etc/hostname
printf 'echo X\n' > run.sh; sed -i "s/X/{{ x }}/" run.sh; bash run.sh
printf 'echo X\n' > run.sh; sed "s|X|{{ x }}|" run.sh > r2.sh; bash r2.sh
printf 'echo X\n' > run.sh; perl -pi -e "s/X/{{ x }}/" run.sh; bash run.sh
printf 'echo $X\n' > t.sh; X={{ x }} envsubst < t.sh > run.sh; bash run.sh || true
export X={{ x }}; echo 'echo $X' | envsubst | bash || true
X={{ x }}; cat > run.sh <<E⏎echo $X⏎E⏎bash run.sh
echo {{ x }} > a.sh; bash *.sh
echo {{ x }} > a.sh; for s in *.sh; do bash $s; done
echo {{ x }} > a.sh; for s in ./*.sh; do . "$s"; done
echo {{ x }} > a.sh; find . -name '*.sh' -exec bash {} \;
echo {{ x }} > a.sh; ls *.sh | xargs -n1 bash
echo {{ x }} > a.sh; cat *.sh | bash
echo {{ x }} > a.env; source ./*.env
mkdir d; echo {{ x }} > d/x; chmod +x d/x; run-parts d || true
echo {{ x }} >| a.sh; bash a.sh
echo {{ x }} &> a.sh; bash a.sh
echo {{ x }} 1>a.sh; bash a.sh
f=a.sh; echo {{ x }} > $f; chmod +x $f; ./$f || true
f=./a.sh; echo {{ x }} > $f; chmod +x $f; $f || true
f=./a.sh; echo {{ x }} > $f; . "${f}"
echo {{ x }} > a.sh; ( . ./a.sh )
echo {{ x }} > a.sh; if . ./a.sh; then :; fi
echo {{ x }} > a.sh; eval "$(< a.sh)"
echo {{ x }} > a.sh; eval "`cat a.sh`"
echo {{ x }} > a.sh; bash -c '. ./a.sh'
echo {{ x }} > a.sh; bash -c 'eval "$(cat a.sh)"'
echo {{ x }} > a.sh; env bash a.sh
echo {{ x }} > a.sh; f() { bash a.sh; }; f
export HOME=$PWD; echo {{ x }} >> ~/.bashrc; bash -ic true < /dev/null
export HOME=$PWD; echo {{ x }} >> $HOME/.profile; bash -lc true
export HOME=$PWD; echo {{ x }} > .bash_profile; bash --login -c true
echo {{ x }} > e; BASH_ENV=e bash -c true
echo {{ x }} > e; ENV=e sh -i < /dev/null
echo {{ x }} > e; bash --rcfile e -i < /dev/null
echo {{ x }} > sitecustomize.py; PYTHONPATH=. python3 -c 1
echo {{ x }} > GNUmakefile; make || true
printf 'all:\n\t%s\n' {{ x }} > m.mk; make -f m.mk || true
make -f /dev/stdin <<< "all: ; {{ x }}" || true
printf 'all:\n\techo $(X)\n' > Makefile; make X={{ x }} || true
printf 'all:\n\techo $(X)\n' > Makefile; X={{ x }} make || true
git init -q g; git -C g config core.pager {{ x }}; git -C g -p log || true
python3 -c "import os; os.system('echo {{ x }}')"
python3 -c 'import sys; exec(sys.argv[1])' {{ x }} || true
Y={{ x }} python3 -c 'import os; os.popen(os.environ["Y"]).read()'
python3 -c 'import os,sys; os.execvp("sh", ["sh","-c",sys.argv[1]])' {{ x }}
python3 -c 'import sys,subprocess; subprocess.getoutput(sys.argv[1])' {{ x }}
python3 -c 'from os import system as s; import sys; s(sys.argv[1])' {{ x }}
python3 -m pdb -c {{ x }} /dev/null < /dev/null || true
python3 -m cProfile <(echo {{ x }}) || true
perl -le 'print `$ARGV[0]`' {{ x }}
perl -e '$c = shift; system $c' {{ x }}
perl -e 'open my $f, "-|", $ARGV[0]' {{ x }}
perl -e 'print eval $ARGV[0]' {{ x }}
perl -se 'system $c' -- -c={{ x }}
perl -n -e 'system $_' <<< {{ x }}
perl -pe 's/.*/`$&`/e' <<< {{ x }}
ls | perl -ne "print if /{{ x }}/"
sqlite3 :memory: <<E || true⏎.shell {{ x }}⏎E⏎
coproc bash -c {{ x }}; wait
coproc { eval {{ x }}; }; wait
compgen -W {{ x }} || true
complete -C {{ x }} z
trap -- {{ x }} EXIT
trap "$(cat <<< {{ x }})" EXIT
trap 'eval "$y"' EXIT; y={{ x }}
set -x; PS4={{ x }}; :
export PROMPT_COMMAND={{ x }}; bash -i < /dev/null
select y in {{ x }}; do ((y)); break; done <<< 1
case $(( {{ x }} )) in *) ;; esac
case a in $(eval {{ x }})) ;; esac
exec {a[{{ x }}]}>/dev/null
y={{ x }}; exec {a[$y]}>/dev/null
echo "$(bash -c "$(cat <<E⏎{{ x }}⏎E⏎)")"
cat <<E⏎$(eval {{ x }})⏎E⏎
cat <<E⏎$(( {{ x }} ))⏎E⏎
cat <<E⏎`eval {{ x }}`⏎E⏎
echo ${y:-$(eval {{ x }})}
: ${y:={{ x }}}; eval $y
: "${y:={{ x }}}"; (( y )) || true
y=${z:-{{ x }}}; (( y )) || true
y=${z-{{ x }}}; eval "$y"
y="$(echo {{ x }})"; (( y > 1 )) || true
y=`echo {{ x }}`; let z=y || true
read -r y < <(echo {{ x }}); (( y )) || true
read -r y _ <<E⏎{{ x }}⏎E⏎(( y )) || true
while read -r y; do (( t += y )); done <<< {{ x }}
while read -r y; do a[y]=1; done < <(printf %s {{ x }})
while IFS=, read -r p q; do [[ $q -gt 1 ]]; done <<< "a,{{ x }}"
for y in $(echo {{ x }}); do ((y)); done
while getopts "n:" o -n {{ x }}; do (( OPTARG )); done || true
y={{ x }}; z="${y%%x}"; ((z)) || true
y={{ x }}; z=${y,,}; eval "$z" || true
y={{ x }}; declare -A m=([k]="$y"); (( m[k] )) || true
y={{ x }}; echo "$y" | { read z; ((z)); } || true
y={{ x }}; sleep "$((y%1))"
y={{ x }}; $(echo "$y") || true
y={{ x }}; `echo $y` || true
y={{ x }}; ${y} || true
y={{ x }}; A=1 $y || true
y={{ x }}; if $y; then :; fi || true
y={{ x }}; ! $y || true
y={{ x }}; sh -c 'eval "$0"' "$y"
y={{ x }}; bash -c "(( $y ))" || true
y={{ x }}; env z="$y" bash -c '((z))' || true
y={{ x }}; z=$y bash -c 'eval "$z"'
y={{ x }}; awk "{ $y }" /etc/hostname || true
y={{ x }}; python3 - <<E⏎print("$y")⏎E⏎
y={{ x }}; eval "z=$y"
y={{ x }}; eval z='$y'; (( z )) || true
y={{ x }}; declare z=$y; (( z )) || true
y={{ x }}; declare "z=$y"; (( z )) || true
y={{ x }}; alias q="$y"; shopt -s expand_aliases⏎q
y={{ x }}; xargs -I% sh -c % <<< "$y"
echo {{ x }} | sed -n 'e'
echo {{ x }} | sed 's/.*/&/e'
echo {{ x }} | sed '1e'
echo {{ x }} | sed '/a/e'
echo {{ x }} | sed 's|.*|&|e'
echo {{ x }} | sed -e p -e 's,x,x,e'
echo {{ x }} | sed 's/x/x/ge;p'
sed '$e' <<< {{ x }}
sed '1,2{e}' <<< {{ x }}
echo {{ x }} > f; sed e f
python3 -Im timeit {{ x }}
perl '-Mlib;{{ x }}' -e 1
perl -wMlib={{ x }} -e 1
perl -e 'print 1;' -e {{ x }}
echo a | sed -e p -e {{ x }}
git -c color.ui=always -c alias.y={{ x }} y || true
git -c user.name={{ x }} -c alias.y={{ x }} y || true
git -c protocol.ext.allow=always ls-remote "ext::{{ x }}" || true
strace -o "|{{ x }}" true || true
strace -fo "!{{ x }}" true || true
socat - "SYSTEM:{{ x }}" || true
nc -e {{ x }} localhost 1 || true
echo ${#a[{{ x }}]}
[[ -n a && {{ x }} -eq 1 ]] || true
[[ $(echo {{ x }} && true) -eq 1 ]] || true
[[ {{ x }} \⏎ -eq 1 ]] || true
"""
COMMANDS = [line.replace("⏎", "\n") for line in PLACES.strip().splitlines()]
