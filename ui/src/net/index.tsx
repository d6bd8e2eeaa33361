/** The workflow graph: steps and arcs, with their status at a position in the log. */
import { BaseEdge, Controls, MiniMap, Panel, useStore, EdgeLabelRenderer, Handle, MarkerType, Position, ReactFlow, ReactFlowProvider, useReactFlow, type Edge, type EdgeProps, type Node, type NodeProps } from "@xyflow/react";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Moment, StepMoment } from "../execution/moment";
import { grouped, momentOf } from "./groups";
import { arcWords, HEIGHT, place, WIDTH, type Net, type NetArc, type NetStep } from "./layout";

export type { Net } from "./layout";

interface StepData extends Record<string, unknown> {
  node: NetStep;
  moment: StepMoment | null;
  live: boolean;
  across: boolean;
  selected: boolean;
  /** Of a group: the number of its steps. */
  size: number;
}

const STATUS_TEXT: Record<string, string> = {
  pending: "not reached",
  parked: "waiting",
  scheduled: "queued",
  running: "running",
  success: "done",
  failed: "failed",
  skipped: "skipped",
  cancelled: "cancelled",
};

function StepNode({ data }: NodeProps<Node<StepData>>) {
  const { node, moment, live, across, selected, size } = data;
  const status = moment?.status ?? (live ? "pending" : "plain");
  const kinds = size ? `${size} steps` : [...new Set(node.tasks.map((task) => task.kind))].join(" · ") || (node.loop ? "loop" : "route");
  const group = size ? "group" : "";
  const total = moment?.iterations ?? 0;
  const far = useStore((store: { transform: [number, number, number] }) => store.transform[2] < FAR);
  if (far) {
    // Semantic zoom: from a distance only the name and the status, in a size that can be read.
    return (
      <div class={`net-step far ${group} ${status} ${selected ? "selected" : ""}`} title={`${node.step}: ${STATUS_TEXT[status] ?? status}`}>
        <Handle type="target" position={across ? Position.Left : Position.Top} isConnectable={false} />
        <span>{node.step}</span>
        <Handle type="source" position={across ? Position.Right : Position.Bottom} isConnectable={false} />
      </div>
    );
  }
  return (
    <div class={`net-step ${group} ${status} ${node.synthesized ? "made" : ""} ${selected ? "selected" : ""}`} title={node.description ?? undefined}>
      <Handle type="target" position={across ? Position.Left : Position.Top} isConnectable={false} />
      <div class="net-name">
        <i aria-hidden="true" />
        <span>{node.step}</span>
        {node.gate && <b title="has admission rules">◇</b>}
        {node.loop && <b title={`loop, ${node.loop.mode}`}>↻</b>}
        {node.compensation && <b title={`undone by: ${node.compensation.tasks.map((task) => task.name).join(", ")}`}>↩</b>}
        {node.synthesizes && <b title={`may add up to ${node.synthesizes.steps} steps at run time`}>+</b>}
        {node.synthesized && <b title="added at run time">✧</b>}
        {(node.pool || (node.labels?.length ?? 0) > 0) && <b title={`runs on ${[node.pool && `pool ${node.pool}`, ...(node.labels ?? [])].filter(Boolean).join(", ")}`}>⌂</b>}
      </div>
      <div class="net-kinds">{moment?.status === "running" && moment.task ? moment.task : kinds}</div>
      {live && (
        <div class="net-state">
          <span>{STATUS_TEXT[status] ?? status}</span>
          {total > 0 && (
            <span class="number" title={`${moment!.iterationsDone} of ${total} iterations, ${moment!.iterationsFailed} failed`}>
              {moment!.iterationsDone.toLocaleString()}/{total.toLocaleString()}
              {moment!.iterationsFailed > 0 && <em class="bad"> {moment!.iterationsFailed} ✕</em>}
            </span>
          )}
          {total === 0 && (moment?.runs ?? 0) > 1 && <span class="number">{moment!.runs} runs</span>}
        </div>
      )}
      {total > 0 && (
        <div class="net-bar" aria-hidden="true">
          <u style={{ width: `${(100 * (moment!.iterationsDone - moment!.iterationsFailed)) / total}%` }} />
          <u class="bad" style={{ width: `${(100 * moment!.iterationsFailed) / total}%` }} />
        </div>
      )}
      {(moment?.retries ?? 0) > 0 && (
        <span class="net-badge retry" title={`${moment!.retries} retries, up to ${moment!.attempts} attempts of one task`}>
          ⟳ {moment!.retries}
        </span>
      )}
      {(moment?.parked.size ?? 0) > 0 && (
        <span class="net-badge parked" title={`waiting tokens: ${[...moment!.parked.values()].join(", ")}`}>
          ● {moment!.parked.size}
        </span>
      )}
      <Handle type="source" position={across ? Position.Right : Position.Bottom} isConnectable={false} />
    </div>
  );
}

interface ArcData extends Record<string, unknown> {
  words: string;
  whole: string;
  taken: number;
  way: { path: string; x: number; y: number };
}

function ArcEdge(props: EdgeProps<Edge<ArcData>>) {
  const { data, markerEnd } = props;
  const far = useStore((store: { transform: [number, number, number] }) => store.transform[2] < FAR);
  if (!data) return null;
  const { path, x, y } = data.way;
  return (
    <>
      <BaseEdge path={path} markerEnd={markerEnd} />
      {!far && (data.words !== "" || data.taken > 1) && (
        <EdgeLabelRenderer>
          <div class="net-when" title={data.whole} style={{ transform: `translate(-50%, -50%) translate(${x}px, ${y}px)` }}>
            {data.words}
            {data.taken > 1 && <b class="number"> ×{data.taken}</b>}
          </div>
        </EdgeLabelRenderer>
      )}
    </>
  );
}

const LEGIBLE = 0.85;
const SMALLEST = 0.3;
const FAR = 0.62; // zoom below which steps show only their name
const MANY = 15; // steps from which search and overview are offered
const CROWDED = 40; // steps from which sequences are grouped at first

/** The step to show first: a failed one, a running one, else the entry. */
function mostInteresting(net: Net, moment: Moment | null | undefined): string {
  const steps = [...(moment?.steps.values() ?? [])];
  const found = (status: string) => steps.filter((each) => each.status === status).at(-1)?.step;
  return found("failed") ?? found("running") ?? found("parked") ?? net.entry;
}

/** Taken arcs are drawn last, above the others. */
function inOrder(arcs: NetArc[], moment: Moment | null | undefined): NetArc[] {
  const taken = (arc: NetArc) => (moment?.arcs.get(`${arc.source}#${arc.index}`)?.taken ? 1 : 0);
  return [...arcs].sort((a, b) => taken(a) - taken(b));
}

const colourOf = (status: string | undefined) => `var(--${{ failed: "bad", running: "run", success: "ok", parked: "wait" }[status ?? ""] ?? "line-strong"})`;

/** Search for a step, and jump to failed or running ones. */
interface FinderProps {
  net: Net;
  moment: Moment | null | undefined;
  onGo: (step: string) => void;
  /** Null: the net has no sequences. */
  grouping: boolean | null;
  setGrouping: (grouping: boolean) => void;
}

function Finder({ net, moment, onGo, grouping, setGrouping }: FinderProps) {
  const [text, setText] = useState("");
  const turn = useRef(0);
  const having = (status: string) => net.nodes.filter((node) => moment?.steps.get(node.step)?.status === status).map((node) => node.step);
  const failed = having("failed");
  const running = having("running");
  const next = (steps: string[]) => onGo(steps[turn.current++ % steps.length]);
  const found = text.trim() ? net.nodes.filter((node) => node.step.toLowerCase().includes(text.trim().toLowerCase())) : [];
  return (
    <Panel position="top-left">
      <div class="net-finder">
        <input
          type="search"
          placeholder="Find step"
          aria-label="Find a step in the graph"
          value={text}
          onInput={(event) => setText(event.currentTarget.value)}
          onKeyDown={(event) => {
            if (event.key === "Enter" && found.length) next(found.map((node) => node.step));
          }}
        />
        {text.trim() !== "" && <span class="quiet number">{found.length}</span>}
        {failed.length > 0 && (
          <button type="button" class="chip bad" onClick={() => next(failed)}>
            {failed.length} failed
          </button>
        )}
        {running.length > 0 && (
          <button type="button" class="chip" onClick={() => next(running)}>
            {running.length} running
          </button>
        )}
        {grouping !== null && (
          <button type="button" class="chip" aria-pressed={grouping} title="Draw sequences of steps as one node" onClick={() => setGrouping(!grouping)}>
            group
          </button>
        )}
      </div>
    </Panel>
  );
}

const nodeTypes = { step: StepNode as any };
const edgeTypes = { arc: ArcEdge as any };

interface NetProps {
  net: Net;
  moment?: Moment | null;
  selected?: string | null;
  onSelect?: (step: string | null) => void;
}

export function NetView(props: NetProps) {
  const frame = useRef<HTMLDivElement>(null);
  const [size, setSize] = useState<{ width: number; height: number } | null>(null);
  useEffect(() => {
    let timer = 0;
    const watch = new ResizeObserver(([entry]) => {
      const { width, height } = entry.contentRect;
      if (!width) return;
      clearTimeout(timer);
      timer = window.setTimeout(() => setSize({ width, height }), 60);
    });
    watch.observe(frame.current!);
    return () => {
      clearTimeout(timer);
      watch.disconnect();
    };
  }, []);
  return (
    <div class="net" ref={frame} role="region" aria-label={`Graph of ${props.net.path}`}>
      {size !== null && (
        <ReactFlowProvider>
          <Drawing {...props} across={size.width > 620} size={size} />
        </ReactFlowProvider>
      )}
    </div>
  );
}

function Drawing({ net: whole, moment, selected, onSelect, across, size }: NetProps & { across: boolean; size: { width: number; height: number } }) {
  const [grouping, setGrouping] = useState(whole.nodes.length >= CROWDED);
  const [opened, setOpened] = useState<Set<string>>(new Set());
  const possible = useMemo(() => whole.nodes.length >= MANY && grouped(whole, new Set()).groups.size > 0, [whole]);
  // A selected step is shown: its group is open.
  const inner = selected && grouping ? selected : null;
  const { net, groups, groupOf } = useMemo(() => (grouping && possible ? grouped(whole, inner ? new Set([...opened, inner]) : opened) : { net: whole, groups: new Map<string, string[]>(), groupOf: new Map<string, string>() }), [whole, grouping, possible, opened, inner]);
  const placed = useMemo(() => place(net, across, size), [net, across, size]);
  const flow = useReactFlow();
  const room = placed.loops ? 0.14 : 0.05;
  const frame = useRef<HTMLDivElement>(null);
  const centerOn = (step: string) => {
    const at = placed.positions.get(groupOf.get(step) ?? step);
    if (at) void flow.setCenter(at.x + WIDTH / 2, at.y + HEIGHT / 2, { zoom: LEGIBLE });
  };
  // A graph that does not fit legibly is not shrunk: it is centered on the most relevant step and can be dragged.
  const large = () => {
    const box = frame.current?.getBoundingClientRect();
    return !!box && Math.min(box.width / placed.width, box.height / placed.height) < SMALLEST;
  };
  useEffect(() => {
    const timer = setTimeout(() => {
      if (large()) centerOn(selected ?? mostInteresting(net, moment));
      else void flow.fitView({ padding: room, maxZoom: 1.1 });
    }, 0);
    return () => clearTimeout(timer);
  }, [placed]);
  useEffect(() => {
    if (selected && large()) centerOn(selected);
  }, [selected]);

  const nodes = useMemo<Node<StepData>[]>(
    () =>
      net.nodes.map((node) => {
        const members = groups.get(node.step);
        const at = moment ? (members ? momentOf(node.step, members, moment) : (moment.steps.get(node.step) ?? null)) : null;
        return {
          id: node.step,
          type: "step",
          position: placed.positions.get(node.step)!,
          width: WIDTH,
          height: HEIGHT,
          draggable: false,
          connectable: false,
          deletable: false,
          ariaLabel: `${members ? `group of ${members.length} steps` : "step"} ${node.step}${moment ? `, ${STATUS_TEXT[at?.status ?? "pending"]}` : ""}`,
          data: { node, moment: at, live: !!moment, across, selected: selected === node.step, size: members?.length ?? 0 },
        };
      }),
    [net, moment, placed, selected, groups],
  );
  const edges = useMemo<Edge<ArcData>[]>(
    () =>
      inOrder(net.arcs, moment).map((arc) => {
        const at = moment?.arcs.get(`${groups.get(arc.source)?.at(-1) ?? arc.source}#${arc.index}`);
        const target = moment?.steps.get(groups.get(arc.target)?.[0] ?? arc.target)?.status;
        const moving = !!at?.taken && (target === "running" || target === "scheduled") && moment?.status === "running";
        // A token of a synthesized arc is placed by the server, so no arc of the log counts it.
        const taken = at?.taken || (arc.synthesized && moment?.steps.get(arc.target)?.runs);
        const state = taken ? "taken" : at?.refused ? "refused" : moment ? "idle" : "plain";
        const { words, whole } = arcWords(arc);
        const kind = arc.synthesized ? "made" : "";
        return {
          id: `${arc.source}#${arc.index}`,
          source: arc.source,
          target: arc.target,
          type: "arc",
          focusable: false,
          selectable: false,
          class: `net-arc ${state} ${kind} ${moving ? "moving" : ""}`,
          className: `net-arc ${state} ${kind} ${moving ? "moving" : ""}`,
          markerEnd: { type: MarkerType.ArrowClosed, width: 14, height: 14, color: `var(--arc-${state})` },
          data: { whole, words, taken: at?.taken ?? 0, way: placed.ways.get(`${arc.source}#${arc.index}`)! },
        };
      }),
    [net, moment, placed],
  );
  const choose = (id: string) => {
    const members = groups.get(id);
    if (members) setOpened((known) => new Set([...known, ...members]));
    else onSelect?.(id === selected ? null : id);
  };
  const group = (on: boolean) => {
    setOpened(new Set());
    setGrouping(on);
  };
  return (
    <ReactFlow
      ref={frame as any}
      nodes={nodes}
      edges={edges}
      nodeTypes={nodeTypes}
      edgeTypes={edgeTypes}
      nodesDraggable={false}
      nodesConnectable={false}
      elementsSelectable={!!onSelect}
      edgesFocusable={false}
      deleteKeyCode={null}
      zoomOnScroll={false}
      preventScrolling={false}
      panOnScroll={false}
      minZoom={0.1}
      maxZoom={2}
      proOptions={{ hideAttribution: true }}
      onNodeClick={(_: unknown, node: Node) => choose(node.id)}
      onPaneClick={() => onSelect?.(null)}
      onKeyDown={(event: any) => {
        const id = (event.target as HTMLElement).dataset?.id;
        if (id && (event.key === "Enter" || event.key === " ")) choose(id);
      }}
    >
      {whole.nodes.length >= MANY && <Finder net={whole} moment={moment} onGo={(step) => (centerOn(step), onSelect?.(step))} grouping={possible ? grouping : null} setGrouping={group} />}
      {net.nodes.length >= MANY + 5 && across && (
        <MiniMap pannable zoomable position="bottom-left" ariaLabel="Overview of the graph" style={size.height < 300 ? { width: 110, height: 60 } : { width: 150, height: 90 }} nodeColor={(node: Node) => colourOf((node.data as StepData).moment?.status)} nodeStrokeWidth={0} />
      )}
      <Controls showInteractive={false} position="bottom-right" fitViewOptions={{ padding: room, maxZoom: 1.1 }} />
    </ReactFlow>
  );
}
