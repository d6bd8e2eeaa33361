"""Ordinary commands, in which every value is data: none may be refused. `⏎` stands for a line break."""

COMMANDS = [
    command.replace("⏎", "\n")
    for command in r"""
aws s3 cp {{ x }} s3://bucket/key
aws s3 sync ./out s3://bucket/{{ x }} --delete
gsutil cp out.csv gs://bucket/{{ x }}
az storage blob upload -f {{ x }} -c data
gcloud run deploy {{ x }} --image img
terraform apply -var "name={{ x }}" -auto-approve
helm upgrade --install app ./chart --set image.tag={{ x }}
ansible-playbook site.yml -e "name={{ x }}"
dbt run --select {{ x }} --target prod
dbt run --vars '{"day": "{{ x }}"}'
spark-submit --name job main.py {{ x }}
pytest -k {{ x }} tests
pip install -r {{ x }}
poetry run python main.py --date {{ x }}
uv run job.py --name "{{ x }}"
cargo run -- {{ x }}
go run main.go -name {{ x }}
java -jar app.jar --input {{ x }}
mvn -q package -Dname={{ x }}
gradle build -Pname={{ x }}
dotnet run -- {{ x }}
ffmpeg -i {{ x }} -vf scale=640:-1 out.mp4
convert {{ x }} -resize 50% out.png
pdftotext {{ x }} - | head -20
pandoc {{ x }} -o out.pdf
curl -sS -H "Authorization: Bearer {{ x }}" https://api/v1
curl -X POST -d '{"name": "{{ x }}"}' https://api/v1
curl -fsSL "https://api/{{ x }}" -o out.json && jq . out.json
curl -s https://api | jq -r --arg n {{ x }} '.[] | select(.n == $n) | .id' > id.txt
wget -q {{ x }} -O data.csv; wc -l data.csv
mkdir -p {{ x }}; cd {{ x }}; touch a b c
rm -rf /tmp/work/{{ x }}
mv {{ x }} done/
test -e {{ x }} || exit 3
[ -d "{{ x }}" ] || mkdir -p "{{ x }}"
if [[ -f "{{ x }}" ]]; then cat "{{ x }}"; else echo missing; fi
if [ "{{ x }}" = prod ]; then echo prod; fi
if [[ "{{ x }}" == prod* ]]; then echo prod; fi
case "{{ x }}" in prod) echo 1;; dev|test) echo 2;; *) echo 3;; esac
for f in *.csv; do mv "$f" {{ x }}/; done
for i in $(seq 1 3); do echo "$i {{ x }}"; done
n=0; for f in *.csv; do n=$((n+1)); done; echo "$n {{ x }}"
while read -r line; do echo "{{ x }} $line"; done < in.txt
cat in.txt | while IFS=, read -r a b; do echo "$a {{ x }}"; done
find . -name '*.tmp' -print0 | xargs -0 rm -f; echo {{ x }}
find . -type f | xargs grep -l {{ x }}
ls -1 | wc -l > count.txt; echo {{ x }} >> count.txt
sort -t, -k2 {{ x }} > sorted.csv
cut -d, -f1 {{ x }} | sort -u
tr a-z A-Z < {{ x }} > upper.txt
paste -d, {{ x }} b.csv
join -t, {{ x }} b.csv
head -n 5 {{ x }}; tail -n 5 {{ x }}
split -l 1000 {{ x }} part_
sed -n '1,5p' {{ x }}
sed -e 's/a/b/' -e 's/c/d/' {{ x }} > out
awk 'NR > 1 { s += $3 } END { print s }' {{ x }}
awk -F'\t' '$3 > 5 {print $1}' {{ x }} > out.tsv
awk -v d={{ x }} '$2 == d' data.txt
grep -E '^[0-9]+' {{ x }} || true
grep -c {{ x }} log.txt || true
n=$(grep -c . {{ x }}); echo "lines: $n"
n=$(wc -l < {{ x }}); if [ "$n" -gt 10 ]; then echo big; fi
n=$(wc -l < "{{ x }}"); if (( n > 10 )); then echo big; fi
echo {{ x }} > in.txt; n=$(wc -l < in.txt); (( n > 3 )) && echo many
echo {{ x }} > in.txt; if (( $(wc -c < in.txt) > 5 )); then echo; fi
echo {{ x }} >> report.txt; total=$(( 2 + 3 )); echo $total
tar -czf backup-$(date +%F).tgz -C {{ x }} .
tar -xzf archive.tgz -C {{ x }}
zip -r out.zip {{ x }}
unzip -o {{ x }} -d out
gzip -k {{ x }}
zcat {{ x }} | head
base64 {{ x }} > b64.txt
sha256sum {{ x }} > sums.txt
openssl dgst -sha256 {{ x }}
gpg --batch -o out.gpg -e -r {{ x }} f
date -d {{ x }} +%F
date -u +%Y%m%d; echo {{ x }}
sleep 1; echo {{ x }}
timeout 30 ./job {{ x }}
nice -n 10 ./job --name {{ x }}
nohup ./server {{ x }} > log 2>&1 &
env TZ=UTC ./job {{ x }}
TZ=UTC LANG=C ./job {{ x }}
export AWS_REGION={{ x }}; ./deploy
export NAME={{ x }} MODE=prod; python3 app.py
NAME={{ x }}; export NAME; ./run.sh
NAME={{ x }}; echo "hello $NAME" > hello.txt; cat hello.txt
NAME={{ x }}; mkdir -p "$NAME" && cp a.txt "$NAME/"
NAME={{ x }}; SLUG=$(echo "$NAME" | tr ' ' '-'); echo "$SLUG"
NAME={{ x }}; echo "${NAME:-default}"
NAME={{ x }}; echo "${NAME:0:5}"
NAME={{ x }}; for i in 1 2; do printf '%s\n' "$NAME-$i"; done
NAME={{ x }}; if [ -z "$NAME" ]; then exit 1; fi; echo $((1+1))
arr=(a b {{ x }}); for e in "${arr[@]}"; do echo "$e"; done
arr=(a b c); echo "${arr[0]} {{ x }}"
psql "$DSN" -v day="'{{ x }}'" -f load.sql
psql "$DSN" -At -f q.sql > out.csv; echo {{ x }}
mysql -h host -u user db < dump.sql; echo {{ x }}
sqlite3 app.db < schema.sql && echo {{ x }}
mongoimport --db d --collection c --file {{ x }}
redis-cli set key {{ x }}
kafka-console-producer --topic {{ x }} < msgs
git checkout -b {{ x }}
git add . && git commit -m "{{ x }}" && git push
git log --author={{ x }} --oneline | head
git diff --stat {{ x }} HEAD
ssh-keygen -t ed25519 -C {{ x }} -f key -N ''
chmod 600 {{ x }}; chown app:app {{ x }}
ln -sfn {{ x }} current
systemctl restart {{ x }}
docker ps --filter name={{ x }} --format '{{.ID}}'
docker run --rm -e A={{ x }} -v $PWD:/w img python /w/job.py
docker compose -p {{ x }} up -d
kubectl -n {{ x }} rollout status deployment/web
kubectl create secret generic s --from-literal=k={{ x }}
python3 -c 'import sys; print(len(sys.argv[1]))' {{ x }}
python3 -c 'import json,sys; json.dump({"a": sys.argv[1]}, sys.stdout)' {{ x }} > a.json
python3 - {{ x }} <<'E'⏎import sys⏎print(sys.argv[1].upper())⏎E
python3 <<'E'⏎print(1)⏎E⏎echo {{ x }}
cat > config.yaml <<E⏎name: {{ x }}⏎E⏎cat config.yaml
cat > config.ini <<E⏎[a]⏎name={{ x }}⏎E⏎./server --config config.ini
cat > app.conf <<E⏎server_name {{ x }};⏎E⏎nginx -t -c app.conf
echo '{"a": 1}' > a.json; jq --arg b {{ x }} '.b = $b' a.json > b.json; mv b.json a.json
echo '#!/bin/sh' > run.sh; echo 'echo hello "$1"' >> run.sh; sh run.sh {{ x }}
cat > job.py <<'E'⏎import sys⏎print(sys.argv[1])⏎E⏎python3 job.py {{ x }}
cat > run.sh <<'E'⏎#!/bin/bash⏎set -euo pipefail⏎name="$1"⏎echo "run $name"⏎E⏎bash run.sh {{ x }}
printf '%s\n' "{{ x }}" > list.txt; xargs -a list.txt -n1 echo
printf '%s\0' {{ x }} | xargs -0 -n1 basename
echo {{ x }} | md5sum | cut -d' ' -f1
echo {{ x }} | tee -a log.txt
echo {{ x }} | sed 's/ /_/g'
echo {{ x }} | awk '{ print NF }'
echo {{ x }} | python3 -m json.tool || true
echo {{ x }} | base64 -d > out.bin || true
echo {{ x }} 1>&2
echo {{ x }} > /dev/null 2>&1
echo {{ x }} 2> err.txt
{ echo header; echo {{ x }}; } > out.txt
( cd /tmp && ls {{ x }} )
{ date; echo {{ x }}; } >> log.txt; ./next.sh
{ echo a; echo {{ x }}; } > out.txt; bash build.sh
for f in a b; do echo {{ x }}; done > out.txt; python3 load.py out.txt
set -euo pipefail; curl -f {{ x }} | jq .
set -x; echo {{ x }}
trap 'rm -f tmp.txt' EXIT; echo {{ x }} > tmp.txt; wc tmp.txt
start=$(date +%s); ./job {{ x }}; end=$(date +%s); echo "$((end - start)) s"
SECONDS=0; ./job {{ x }}; echo "took $SECONDS"
i=0; while [ $i -lt 3 ]; do curl -f {{ x }} && break; i=$((i+1)); sleep 1; done
retries=3; until ./job {{ x }}; do retries=$((retries-1)); [ $retries -le 0 ] && exit 1; done
perl -ne 'print if /x/' data.txt; echo {{ x }}
perl -e 'print join(",", @ARGV)' {{ x }}
ruby script.rb {{ x }}
Rscript analyse.R {{ x }}
node -e 'console.log(process.argv[1])' {{ x }}
php artisan import {{ x }}
read -r first rest <<< {{ x }}; echo "$first"
IFS=, read -ra parts <<< {{ x }}; echo "${parts[0]}"
mapfile -t lines < {{ x }}; echo "${lines[0]}"
diff <(sort a.txt) <(sort {{ x }})
comm -12 <(sort {{ x }}) <(sort b.txt)
[[ {{ x }} =~ ^([a-z]+)-([0-9]+)$ ]] && echo "${BASH_REMATCH[1]}"
[[ {{ x }} = *.csv && -s {{ x }} ]] && echo ok
printf 'Report for %s\n' {{ x }} | mail -s "Report {{ x }}" a@b
logger -t job {{ x }}
rclone copy {{ x }} remote:bucket
duckdb data.db "select 1"; echo {{ x }}
duckdb data.db < load.sql; echo {{ x }}
source .venv/bin/activate; python -m app {{ x }}
. ./env.sh; ./deploy {{ x }}
make build; ./bin/app {{ x }}
export PGPASSWORD={{ x }}; psql -h db -f q.sql
export TOKEN={{ x }}; bash deploy.sh
TOKEN={{ x }} bash deploy.sh
OUT={{ x }}; echo hi > "$OUT"; bash notify.sh "$OUT"
out=$(./job {{ x }}); echo "$out"
result=$(curl -s {{ x }}); echo "$result" > r.json; python3 parse.py r.json
y={{ x }}; echo ${#y}
arr=({{ x }} b); echo "${#arr[@]} {{ x }}"
mapfile -t lines < {{ x }}; echo ${#lines[@]}
echo {{ x }} | sed 's/e/x/' | sed 's|.*/||;s/e$/f/'
echo {{ x }} | sed -e 's/a/b/' -e 's/the /a /g' -e '/^$/d'
git -c user.name={{ x }} -c core.quotePath=false status
python3 -Im venv {{ x }}
[[ -n "{{ x }}" && $COUNT -gt 3 ]] && echo {{ x }}
[[ {{ x }} == a* || 3 -lt 4 ]] || echo no
""".strip().split("\n")
]
