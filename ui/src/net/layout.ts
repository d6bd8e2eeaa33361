/** Where the steps of a net stand: layers from the entry on, crossings kept few. */
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
}

export interface NetArc {
  source: string;
  target: string;
  index: number;
  when: unknown;
  mode: string;
  sets: string[];
}

/** What `/graph` answers. */
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
  /** `step#index` -> the way of the arc, and where its words stand. */
  ways: Map<string, { path: string; x: number; y: number }>;
}

/** A guard in a few characters; the whole is shown on hover. */
export function shortened(when: unknown): string {
  if (when === null || when === undefined) return "";
  const bare = String(when).replace(/^\{\{\s*|\s*\}\}$/g, "");
  return bare.length > 24 ? `${bare.slice(0, 23)}…` : bare;
}

export function place(net: Net, across: boolean): Placed {
  const graph = new graphlib.Graph({ multigraph: true });
  graph.setGraph({ rankdir: across ? "LR" : "TB", nodesep: across ? 26 : 34, ranksep: across ? 50 : 42, marginx: 8, marginy: 8 });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const node of net.nodes) graph.setNode(node.step, { width: WIDTH, height: HEIGHT });
  for (const arc of net.arcs) {
    const words = shortened(arc.when);
    graph.setEdge(arc.source, arc.target, words ? { width: words.length * 6.4 + 10, height: 17, labelpos: "c" } : {}, `${arc.index}`);
  }
  layout(graph);
  const positions = new Map<string, { x: number; y: number }>();
  for (const node of net.nodes) {
    const { x, y } = graph.node(node.step);
    positions.set(node.step, { x: x - WIDTH / 2, y: y - HEIGHT / 2 });
  }
  const ways = new Map<string, { path: string; x: number; y: number }>();
  for (const arc of net.arcs) {
    const { points, x, y } = graph.edge(arc.source, arc.target, `${arc.index}`) as { points: Point[]; x?: number; y?: number };
    const middle = points[points.length >> 1];
    const [source, target] = [graph.node(arc.source), graph.node(arc.target)];
    points[0] = across ? { x: source.x + WIDTH / 2, y: source.y } : { x: source.x, y: source.y + HEIGHT / 2 };
    points[points.length - 1] = across ? { x: target.x - WIDTH / 2, y: target.y } : { x: target.x, y: target.y - HEIGHT / 2 };
    ways.set(`${arc.source}#${arc.index}`, { path: smooth(points, across), x: x ?? middle.x, y: y ?? middle.y });
  }
  return { positions, ways };
}

interface Point {
  x: number;
  y: number;
}

/** A curve through the points that leaves and arrives along the direction of the layers. */
function smooth(points: Point[], across: boolean): string {
  let path = `M${points[0].x},${points[0].y}`;
  for (let at = 1; at < points.length; at++) {
    const [a, b] = [points[at - 1], points[at]];
    const half = across ? { x: (a.x + b.x) / 2, y: 0 } : { x: 0, y: (a.y + b.y) / 2 };
    path += across ? `C${half.x},${a.y} ${half.x},${b.y} ${b.x},${b.y}` : `C${a.x},${half.y} ${b.x},${half.y} ${b.x},${b.y}`;
  }
  return path;
}
