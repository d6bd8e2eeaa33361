/** Line diff of two texts: shortest edit (Myers), after removing the common prefix and suffix. */

export interface Row {
  kind: "same" | "added" | "removed";
  text: string;
  /** Line numbers in the old and the new text; null if the line does not exist. */
  old: number | null;
  new: number | null;
}

const MOST_EDITS = 4000;

export function difference(before: string, after: string): Row[] {
  const a = lines(before);
  const b = lines(after);
  let head = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head++;
  let tail = 0;
  while (tail < a.length - head && tail < b.length - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail++;
  const rows: Row[] = [];
  for (let i = 0; i < head; i++) rows.push({ kind: "same", text: a[i], old: i + 1, new: i + 1 });
  for (const [x, y] of script(a.slice(head, a.length - tail), b.slice(head, b.length - tail))) {
    const kind = x === null ? "added" : y === null ? "removed" : "same";
    const text = x === null ? b[head + y!] : a[head + x];
    rows.push({ kind, text, old: x === null ? null : head + x + 1, new: y === null ? null : head + y + 1 });
  }
  for (let i = tail; i > 0; i--) rows.push({ kind: "same", text: a[a.length - i], old: a.length - i + 1, new: b.length - i + 1 });
  return rows;
}

/** Rows to show: changes with context lines; a number is the size of an omitted gap. */
export function hunks(rows: Row[], around = 3): (Row | number)[] {
  const near = rows.map(() => false);
  rows.forEach((row, index) => {
    if (row.kind === "same") return;
    for (let i = Math.max(0, index - around); i <= Math.min(rows.length - 1, index + around); i++) near[i] = true;
  });
  const shown: (Row | number)[] = [];
  let left = 0;
  rows.forEach((row, index) => {
    if (near[index]) {
      if (left) shown.push(left);
      left = 0;
      shown.push(row);
    } else left++;
  });
  if (left) shown.push(left);
  return shown;
}

const lines = (text: string) => (text === "" ? [] : text.replace(/\n$/, "").split("\n"));

type Pair = [number | null, number | null];

function script(a: string[], b: string[]): Pair[] {
  const most = Math.min(a.length + b.length, MOST_EDITS);
  const trace: Map<number, number>[] = [];
  let reach = new Map<number, number>([[1, 0]]);
  for (let d = 0; d <= most; d++) {
    trace.push(new Map(reach));
    for (let k = -d; k <= d; k += 2) {
      const down = k === -d || (k !== d && (reach.get(k - 1) ?? -1) < (reach.get(k + 1) ?? -1));
      let x = down ? (reach.get(k + 1) ?? 0) : (reach.get(k - 1) ?? 0) + 1;
      while (x < a.length && x - k < b.length && a[x] === b[x - k]) x++;
      reach.set(k, x);
      if (x >= a.length && x - k >= b.length) return walked(trace, a.length, b.length);
    }
  }
  // Too many differences: all lines of one, then all lines of the other.
  return [...a.map((_, x): Pair => [x, null]), ...b.map((_, y): Pair => [null, y])];
}

function walked(trace: Map<number, number>[], x: number, y: number): Pair[] {
  const pairs: Pair[] = [];
  for (let d = trace.length - 1; d >= 0; d--) {
    const reach = trace[d];
    const k = x - y;
    const down = k === -d || (k !== d && (reach.get(k - 1) ?? -1) < (reach.get(k + 1) ?? -1));
    const from = down ? k + 1 : k - 1;
    const fromX = reach.get(from) ?? 0;
    const fromY = fromX - from;
    while (x > fromX && y > fromY && x > 0 && y > 0) pairs.push([--x, --y]);
    if (d === 0) break;
    if (down) pairs.push([null, --y]);
    else pairs.push([--x, null]);
  }
  return pairs.reverse();
}
