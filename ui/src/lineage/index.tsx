/** Lineage: tables and files with the tasks that read and write them, of one playbook or across playbooks. */
import { graphlib, layout } from "@dagrejs/dagre";
import { useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { EmptyState, ErrorState, Loading } from "../common/components";
import { useFetch } from "../common/fetch";
import { Link, useQueryValue } from "../common/router";
import { Time } from "../common/times";
import { pagePath } from "../playbooks/playbook";

interface Task {
  id: string;
  path: string;
  step: string;
  task: string;
  kind: string;
  status: string;
  execution_id: string;
  at: string;
}

interface Dataset {
  id: string;
  namespace: string;
  name: string;
  fields?: { name: string; type?: string }[];
}

interface Edge {
  from: string;
  to: string;
  rows?: number;
}

interface Graph {
  executions: number;
  tasks: Task[];
  datasets: Dataset[];
  edges: Edge[];
}

const POLL = 10_000;
const WIDTH = 212;
const HEIGHT = 46;
const MARGIN = 18;
const MAX_PATH = 22;
/** Namespaces whose names are `database.schema.table`; the others have paths. */
const IN_TABLES = /^(postgres|mysql|clickhouse|snowflake|bigquery|iceberg|adbc)\b/;

/** The page of all playbooks. */
export function Lineage() {
  return (
    <>
      <div class="page-head">
        <h1 class="grow">
          <Link to="/playbooks">Playbooks</Link> <span class="quiet">/</span> lineage
        </h1>
      </div>
      <LineageGraph />
    </>
  );
}

/** The graph of one playbook, or of all. */
export function LineageGraph({ path }: { path?: string }) {
  const { value, problem, reload } = useFetch<Graph>("/api/lineage", path ? { path } : {}, POLL);
  const [chosen, setChosen] = useQueryValue("dataset");
  if (problem && !value) return <ErrorState problem={problem} retry={reload} />;
  if (!value) return <Loading what="Loading lineage" />;
  if (!value.tasks.length) {
    return (
      <EmptyState title="No lineage yet">
        <p>Tasks of kind transfer, object and the SQL kinds record what they read and write. Run {path ? "this playbook" : "a playbook"} that has one.</p>
      </EmptyState>
    );
  }
  const dataset = value.datasets.find((each) => each.id === chosen);
  return (
    <>
      <p class="quiet">
        {value.datasets.length} {value.datasets.length === 1 ? "dataset" : "datasets"} and {value.tasks.length} {value.tasks.length === 1 ? "task" : "tasks"} of the newest{" "}
        {value.executions === 1 ? "execution" : `${value.executions} executions`}. Select a dataset for its columns.
      </p>
      <Drawing graph={value} across={!path} chosen={dataset?.id ?? null} onChoose={(id) => setChosen(id === chosen ? "" : id)} />
      {dataset && <Details graph={value} dataset={dataset} />}
    </>
  );
}

interface DrawingProps {
  graph: Graph;
  /** Several playbooks: tasks show theirs. */
  across: boolean;
  chosen: string | null;
  onChoose: (id: string) => void;
}

function Drawing({ graph, across, chosen, onChoose }: DrawingProps) {
  const placed = useMemo(() => place(graph), [graph]);
  const view = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    const { clientWidth, clientHeight } = view.current!;
    if (chosen) {
      const { x, y } = placed.at(chosen);
      view.current!.scrollTo(x + (WIDTH - clientWidth) / 2, y + (HEIGHT - clientHeight) / 2);
      return;
    }
    // The first task is in the middle of its datasets, which can be below the visible part.
    const { x, y } = placed.at(firstTask(graph, placed));
    view.current!.scrollTo(x + WIDTH > clientWidth ? x : 0, y + HEIGHT > clientHeight ? y - clientHeight / 2 : 0);
  }, []);
  const near = new Set(chosen ? graph.edges.flatMap((each) => (each.from === chosen || each.to === chosen ? [each.from, each.to] : [])) : []);
  const style = (id: string) => ({ left: `${placed.at(id).x}px`, top: `${placed.at(id).y}px`, width: `${WIDTH}px`, height: `${HEIGHT}px` });
  return (
    <div ref={view} class="card lineage" role="group" aria-label="Lineage graph" tabIndex={0}>
      <div class="lineage-canvas" style={{ width: `${placed.width}px`, height: `${placed.height}px` }}>
        <svg width={placed.width} height={placed.height} aria-hidden="true">
          <defs>
            <marker id="lineage-end" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
              <path d="M0 0L8 4L0 8z" />
            </marker>
          </defs>
          {placed.edges.map(({ edge, path, x, y }) => (
            <g key={`${edge.from}>${edge.to}`} class={chosen && (edge.from === chosen || edge.to === chosen) ? "near" : ""}>
              <path d={path} marker-end="url(#lineage-end)" />
              {edge.rows !== undefined && (
                <text x={x} y={y - 4}>
                  {edge.rows.toLocaleString()}
                </text>
              )}
            </g>
          ))}
        </svg>
        {graph.datasets.map((each) => (
          <button key={each.id} type="button" class={`lineage-dataset ${near.has(each.id) ? "near" : ""}`} style={style(each.id)} title={each.id} aria-pressed={each.id === chosen} onClick={() => onChoose(each.id)}>
            <b>{shownName(each).name}</b>
            <small>{shownName(each).place}</small>
          </button>
        ))}
        {graph.tasks.map((each) => (
          <Link key={each.id} to={`/executions/${each.execution_id}?step=${encodeURIComponent(each.step)}`} class={`lineage-task ${each.status}`} style={style(each.id)} title={`${each.id}: ${each.status === "ok" ? "succeeded" : "failed"}`}>
            <b>{taskName(each)}</b>
            <small>{across ? `${ending(each.path)} · ${each.kind}` : each.kind}</small>
          </Link>
        ))}
      </div>
    </div>
  );
}

function Details({ graph, dataset }: { graph: Graph; dataset: Dataset }) {
  const tasks = new Map(graph.tasks.map((each) => [each.id, each]));
  const writers = graph.edges.filter((each) => each.to === dataset.id).map((each) => ({ task: tasks.get(each.from)!, rows: each.rows }));
  const readers = graph.edges.filter((each) => each.from === dataset.id).map((each) => ({ task: tasks.get(each.to)!, rows: undefined }));
  return (
    <section class="card lineage-details" aria-label={`Dataset ${dataset.name}`}>
      <h2>{dataset.name}</h2>
      <p class="quiet">{dataset.namespace}</p>
      <div class="lineage-facts">
        {[
          ["Written by", writers],
          ["Read by", readers],
        ].map(([title, found]) => (
          <div key={title as string}>
            <h3>{title as string}</h3>
            {!(found as typeof writers).length && <p class="quiet">none of the shown tasks</p>}
            <ul>
              {(found as typeof writers).map(({ task, rows }) => (
                <li key={task.id}>
                  <Link to={pagePath(task.path)}>{task.path}</Link> {taskName(task)}
                  {rows !== undefined && <span class="number"> · {rows.toLocaleString()} rows</span>} <span class="quiet">
                    · <Time at={task.at} />
                  </span>
                </li>
              ))}
            </ul>
          </div>
        ))}
        {dataset.fields && (
          <div>
            <h3>Columns</h3>
            <ul class="lineage-columns">
              {dataset.fields.map((each) => (
                <li key={each.name}>
                  {each.name} <span class="quiet">{each.type}</span>
                </li>
              ))}
            </ul>
          </div>
        )}
      </div>
    </section>
  );
}

/** The table or file, which is what distinguishes datasets, and the place that it is in. */
function shownName({ namespace, name }: Dataset): { name: string; place: string } {
  const mark = name.indexOf("#");
  const end = mark >= 0 ? mark : name.lastIndexOf(IN_TABLES.test(namespace) ? "." : "/");
  const place = name.slice(0, Math.max(0, end));
  const short = mark >= 0 ? place.slice(place.lastIndexOf("/") + 1) : ""; // the file of a database, before its folder
  const folder = mark >= 0 ? place.slice(0, place.length - short.length).replace(/\/$/, "") : place;
  return { name: name.slice(end + 1) || name, place: [short, namespace, folder].filter(Boolean).join(" · ") };
}

/** The end of a long path, which distinguishes it from others. */
function ending(path: string): string {
  return path.length > MAX_PATH ? `…${path.slice(1 - MAX_PATH)}` : path;
}

/** The task at the left and the top. */
function firstTask(graph: Graph, placed: { at: (id: string) => { x: number; y: number } }): string {
  const order = (id: string) => placed.at(id).x * 1_000_000 + placed.at(id).y;
  return graph.tasks.reduce((first, { id }) => (order(id) < order(first) ? id : first), graph.tasks[0].id);
}

/** The step, and the task if it has a name of its own. */
function taskName({ step, task }: Task): string {
  return task === step || task === `${step}_task` ? step : `${step}.${task}`;
}

function place(graph: Graph) {
  const net = new graphlib.Graph();
  net.setGraph({ rankdir: "LR", nodesep: 22, ranksep: 64, marginx: 14, marginy: 18 });
  for (const { id } of [...graph.datasets, ...graph.tasks]) net.setNode(id, { width: WIDTH, height: HEIGHT });
  for (const each of graph.edges) net.setEdge(each.from, each.to, {});
  layout(net);
  fit(net);
  const edges = graph.edges.map((edge) => {
    const { points } = net.edge(edge.from, edge.to) as { points: { x: number; y: number }[] };
    const [from, to] = [net.node(edge.from), net.node(edge.to)] as { x: number; y: number }[];
    // An edge back to an earlier dataset ends where the layout says; the others leave at the right and end at the left.
    const forward = from.x < to.x;
    const [first, ...rest] = forward ? [{ x: from.x + WIDTH / 2, y: from.y }, ...points.slice(1, -1), { x: to.x - WIDTH / 2, y: to.y }] : points;
    const middle = points[points.length >> 1];
    return { edge, path: `M${first.x},${first.y}${rest.map((point) => `L${point.x},${point.y}`).join("")}`, x: middle.x, y: middle.y };
  });
  const size = net.graph() as { width: number; height: number };
  const at = (id: string) => {
    const { x, y } = net.node(id) as { x: number; y: number };
    return { x: x - WIDTH / 2, y: y - HEIGHT / 2 };
  };
  return { edges, at, width: Math.ceil(size.width), height: Math.ceil(size.height) };
}

/** Move everything so that edges back to earlier datasets, which pass outside of the nodes, are inside of the drawing. */
function fit(net: graphlib.Graph): void {
  const points = net.edges().flatMap((each) => (net.edge(each) as { points: { x: number; y: number }[] }).points);
  const [left, top] = [MARGIN - Math.min(MARGIN, ...points.map(({ x }) => x)), MARGIN - Math.min(MARGIN, ...points.map(({ y }) => y))];
  for (const place of [...points, ...net.nodes().map((each) => net.node(each) as { x: number; y: number })]) {
    place.x += left;
    place.y += top;
  }
  const size = net.graph() as { width: number; height: number };
  size.width = Math.max(size.width + left, ...points.map(({ x }) => x + MARGIN));
  size.height = Math.max(size.height + top, ...points.map(({ y }) => y + MARGIN));
}
