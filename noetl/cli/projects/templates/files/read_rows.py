import csv

good, bad = [], []
with open(file, newline="") as opened:  # noqa: F821 - `file` is an input of the task
    for row in csv.DictReader(opened):
        try:
            good.append({"id": int(row["id"]), "amount": int(row["amount"])})
        except ValueError as problem:
            bad.append({**row, "reason": str(problem)})
result = {"good": good, "bad": bad}
