/** Layout of the graph: layers from the entry, with few crossings. */
import { graphlib, layout } from "@dagrejs/dagre";

export interface NetStep {
  step: string;
  description: string | null;
  line: number | null;
  entry: boolean;
  synthesized: boolean;
  gate: boolean;
  join: string;
  loop: { iterator: string; mode: string; in: string | null; inner: unknown } | null;
  tasks: { name: string; kind: string }[];
  compensation?: { tasks: { name: string; kind: string }[]; when: unknown } | null;
  synthesizes?: { steps: number; kinds: string[] } | null;
  pool?: string | null;
  labels?: string[];
}

export interface NetArc {
  source: string;
  target: string;
  index: number | string;
  when: unknown;
  mode: string;
  sets: string[];
  dedupe?: unknown;
  partition?: unknown;
  priority?: unknown;
  /** From a step to the first of the steps that it added at run time. */
  synthesized?: boolean;
}

/** Response of `/graph`. */
export interface Net {
  path: string;
  name: string;
  entry: string;
  return_step: string | null;
  nodes: NetStep[];
  arcs: NetArc[];
}

export const WIDTH = 196;
export const HEIGHT = 66;

export interface Placed {
  positions: Map<string, { x: number; y: number }>;
  /** `step#index` -> the path of the arc, and the position of its label. */
  ways: Map<string, Way>;
  width: number;
  height: number;
  /** An arc leads back: space around the steps is required for it. */
  loops: boolean;
}

export interface Way {
  path: string;
  x: number;
  y: number;
}

/** A shortened guard; the full text is shown on hover. */
export function shortened(when: unknown): string {
  if (when === null || when === undefined) return "";
  const words = inWords(String(when).replace(/^\{\{\s*|\s*\}\}$/g, ""));
  return words.length > 30 ? `${words.slice(0, 29)}…` : words;
}

/** The label of an arc: its guard, and how its tokens are treated. */
export function arcWords(arc: NetArc): { words: string; whole: string } {
  const given = (value: unknown) => value !== null && value !== undefined;
  const whole = given(arc.when) ? [String(arc.when)] : [];
  const words = given(arc.when) ? [shortened(arc.when)] : [];
  for (const [value, sign, text] of [
    [arc.dedupe, "⊕", "tokens with an equal key are merged"],
    [arc.partition, "⇶", "tokens with an equal key run one at a time, in order"],
    [arc.priority, "↑", "priority among waiting runs"],
  ] as [unknown, string, string][]) {
    if (!given(value)) continue;
    words.push(`${sign} ${shortened(value)}`);
    whole.push(`${text}: ${value}`);
  }
  if (arc.synthesized) {
    words.push("added");
    whole.push("added at run time");
  }
  return { words: words.filter(Boolean).join("  "), whole: whole.join("\n") };
}

/** A guard as words: what distinguishes it first, the usual parts of guards in short. */
function inWords(guard: string): string {
  let text = guard.replace(/\s+/g, " ").trim();
  for (const [pattern, words] of WORDS) text = text.replace(pattern, words);
  return text.replace(/^(?:and|or) |\s+(?:and|or)$/g, "").trim();
}

const WORDS: [RegExp, string][] = [
  [/event\.name == ['"]loop\.done['"]/g, "loop done"],
  [/event\.name == ['"](?:step|call)\.done['"]/g, "done"],
  [/event\.name == ['"]step\.failed['"]/g, "failed"],
  [/output\.status == ['"]ok['"]|output\.status != ['"]error['"]/g, "ok"],
  [/output\.status == ['"]error['"]|output\.status != ['"]ok['"]/g, "error"],
  [/^(?:loop done|done|ok) and (?=\S)/g, ""],
  [/ and (?:loop done|done|ok)$/g, ""],
  [/\b(?:output\.data|output|ctx|workload)\.(?=[a-z_])/gi, ""],
  [/ == true\b| is true\b/gi, ""],
  [/(\S+) == false\b/gi, "not $1"],
];

const ROW_GAP = 44;

/** The number of rows that a long graph is broken into, so that it is drawn as large as possible in a frame. */
export function rowsFor(placed: Placed, columns: number, frame: { width: number; height: number }): number {
  const scale = (rows: number) => Math.min(frame.width / (placed.width / rows), frame.height / (rows * (placed.height + ROW_GAP) - ROW_GAP), 1.1);
  let best = 1;
  for (let rows = 2; rows <= Math.min(6, Math.floor(columns / 2)); rows++) if (scale(rows) > scale(best) * 1.08) best = rows;
  return best;
}

/** Break the columns of a layout into rows, one below the other; arcs between rows lead around the end of the row. */
function broken(net: Net, placed: Placed, graph: any, columns: number[], rows: number): Placed {
  const size = Math.ceil(columns.length / rows);
  const rowOf = (x: number) => Math.floor(columns.findIndex((each) => Math.abs(each - x) < 1) / size);
  const starts = Array.from({ length: rows }, (_, row) => columns[row * size] ?? 0);
  const ends = Array.from({ length: rows }, (_, row) => columns[Math.min(columns.length, (row + 1) * size) - 1] ?? 0);
  const left = WIDTH / 2 + 30;
  const height = placed.height + ROW_GAP;
  const shift = (row: number) => ({ x: left - starts[row], y: row * height });
  const positions = new Map<string, { x: number; y: number }>();
  const centre = new Map<string, Point>();
  for (const node of net.nodes) {
    const { x, y } = graph.node(node.step);
    const by = shift(rowOf(x));
    centre.set(node.step, { x: x + by.x, y: y + by.y });
    positions.set(node.step, { x: x + by.x - WIDTH / 2, y: y + by.y - HEIGHT / 2 });
  }
  const ways = new Map<string, Way>();
  const width = Math.max(...starts.map((start, row) => ends[row] - start)) + WIDTH + 60;
  for (const arc of net.arcs) {
    const key = `${arc.source}#${arc.index}`;
    const [from, to] = [rowOf(graph.node(arc.source).x), rowOf(graph.node(arc.target).x)];
    const [source, target] = [centre.get(arc.source)!, centre.get(arc.target)!];
    if (from === to && target.x > source.x) {
      const by = shift(from);
      const { points } = graph.edge(arc.source, arc.target, `${arc.index}`) as { points: Point[] };
      const moved = points.map((point) => ({ x: point.x + by.x, y: point.y + by.y }));
      const middle = moved[moved.length >> 1];
      moved[0] = { x: source.x + WIDTH / 2, y: source.y };
      moved[moved.length - 1] = { x: target.x - WIDTH / 2, y: target.y };
      ways.set(key, { path: smooth(moved, true), x: middle.x, y: middle.y });
    } else if (from < to) {
      const [x1, x2] = [source.x + WIDTH / 2, target.x - WIDTH / 2];
      const between = from * height + placed.height + ROW_GAP / 2;
      const out = x1 + 22;
      const back = x2 - 22;
      ways.set(key, { path: `M${x1},${source.y}H${out - 8}Q${out},${source.y} ${out},${source.y + 8}V${between - 8}Q${out},${between} ${out - 8},${between}H${back + 8}Q${back},${between} ${back},${between + 8}V${target.y - 8}Q${back},${target.y} ${back + 8},${target.y}H${x2}`, x: (out + back) / 2, y: between });
    } else ways.set(key, arc.source === arc.target ? aroundItself(source) : backwards(source, target, true));
  }
  return { positions, ways, width, height: rows * height - ROW_GAP, loops: placed.loops };
}

export function place(net: Net, across: boolean, frame: { width: number; height: number } | null = null): Placed {
  const graph = new graphlib.Graph({ multigraph: true });
  graph.setGraph({ rankdir: across ? "LR" : "TB", nodesep: across ? 26 : 34, ranksep: across ? 50 : 54, marginx: 8, marginy: 8 });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const node of net.nodes) graph.setNode(node.step, { width: WIDTH, height: HEIGHT });
  for (const arc of net.arcs) {
    const { words } = arcWords(arc);
    graph.setEdge(arc.source, arc.target, words ? { width: words.length * 6.4 + 10, height: 17, labelpos: "c" } : {}, `${arc.index}`);
  }
  layout(graph);
  const positions = new Map<string, { x: number; y: number }>();
  for (const node of net.nodes) {
    const { x, y } = graph.node(node.step);
    positions.set(node.step, { x: x - WIDTH / 2, y: y - HEIGHT / 2 });
  }
  const ways = new Map<string, Way>();
  let loops = false;
  for (const arc of net.arcs) {
    const key = `${arc.source}#${arc.index}`;
    const [source, target] = [graph.node(arc.source), graph.node(arc.target)];
    if (across ? target.x <= source.x : target.y <= source.y) {
      loops = true;
      ways.set(key, arc.source === arc.target ? aroundItself(source) : backwards(source, target, across));
      continue;
    }
    const { points, x, y } = graph.edge(arc.source, arc.target, `${arc.index}`) as { points: Point[]; x?: number; y?: number };
    const middle = points[points.length >> 1];
    points[0] = across ? { x: source.x + WIDTH / 2, y: source.y } : { x: source.x, y: source.y + HEIGHT / 2 };
    points[points.length - 1] = across ? { x: target.x - WIDTH / 2, y: target.y } : { x: target.x, y: target.y - HEIGHT / 2 };
    ways.set(key, { path: smooth(points, across), x: x ?? middle.x, y: y ?? middle.y });
  }
  const { width = 0, height = 0 } = graph.graph() as { width?: number; height?: number };
  const placed = { positions, ways, width, height, loops };
  const columns = [...new Set(net.nodes.map((node) => Math.round(graph.node(node.step).x)))].sort((a, b) => a - b);
  const rows = across && frame ? rowsFor(placed, columns.length, frame) : 1;
  return rows > 1 ? broken(net, placed, graph, columns, rows) : placed;
}

interface Point {
  x: number;
  y: number;
}

/** From a step to itself: a loop above it. */
function aroundItself({ x, y }: Point): Way {
  const top = y - HEIGHT / 2;
  const side = WIDTH / 5;
  return { path: `M${x + side},${top}C${x + side},${top - 36} ${x - side},${top - 36} ${x - side},${top}`, x, y: top - 27 };
}

/** From a later step to an earlier one: below the row, or right of the column, between them. */
function backwards(source: Point, target: Point, across: boolean): Way {
  if (across) {
    const low = Math.max(source.y, target.y) + HEIGHT / 2;
    const depth = low + 34 + Math.abs(source.x - target.x) * 0.05;
    const path = `M${source.x},${source.y + HEIGHT / 2}C${source.x},${depth} ${target.x},${depth} ${target.x},${target.y + HEIGHT / 2}`;
    return { path, x: (source.x + target.x) / 2, y: low + (depth - low) * 0.75 };
  }
  const far = Math.max(source.x, target.x) + WIDTH / 2;
  const depth = far + 34 + Math.abs(source.y - target.y) * 0.05;
  const path = `M${source.x + WIDTH / 2},${source.y}C${depth},${source.y} ${depth},${target.y} ${target.x + WIDTH / 2},${target.y}`;
  return { path, x: far + (depth - far) * 0.75, y: (source.y + target.y) / 2 };
}

/** A curve through the points that leaves and arrives along the direction of the layers and never overshoots. */
function smooth(points: Point[], across: boolean): string {
  // Along `u` the layers follow each other; `v` is the position within a layer. Slopes are dv/du.
  const u = points.map((point) => (across ? point.x : point.y));
  const v = points.map((point) => (across ? point.y : point.x));
  const last = points.length - 1;
  const slope = points.map((_, at) => {
    if (at === 0 || at === last || (v[at + 1] - v[at]) * (v[at] - v[at - 1]) <= 0) return 0;
    return (v[at + 1] - v[at - 1]) / (u[at + 1] - u[at - 1] || 1);
  });
  const place = (along: number, beside: number) => (across ? `${round(along)},${round(beside)}` : `${round(beside)},${round(along)}`);
  let path = `M${place(u[0], v[0])}`;
  for (let at = 1; at <= last; at++) {
    const reach = (u[at] - u[at - 1]) * 0.45;
    path += `C${place(u[at - 1] + reach, v[at - 1] + slope[at - 1] * reach)} ${place(u[at] - reach, v[at] - slope[at] * reach)} ${place(u[at], v[at])}`;
  }
  return path;
}

const round = (value: number) => Math.round(value * 10) / 10;
