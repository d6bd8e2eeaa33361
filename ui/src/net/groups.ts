/** Grouping: a sequence of steps without branches is drawn as one node, which can be opened. */
import type { Moment, StepMoment, StepStatus } from "../execution/moment";
import type { Net, NetStep } from "./layout";

const SHORTEST = 3; // steps of a sequence that is worth a group

export interface Grouped {
  net: Net;
  /** Name of a group -> its steps in their order. */
  groups: Map<string, string[]>;
  /** Step -> name of its group. */
  groupOf: Map<string, string>;
}

/** The sequences of a net: each step has one arc without a guard, to a step that no other arc leads to. */
export function sequences(net: Net): string[][] {
  const outgoing = new Map<string, number>();
  const incoming = new Map<string, number>();
  for (const arc of net.arcs) {
    outgoing.set(arc.source, (outgoing.get(arc.source) ?? 0) + 1);
    incoming.set(arc.target, (incoming.get(arc.target) ?? 0) + 1);
  }
  const plain = (step: string) => !net.nodes.find((node) => node.step === step)?.gate;
  const next = new Map<string, string>();
  const follows = new Set<string>();
  for (const arc of net.arcs) {
    const unguarded = arc.when === null || arc.when === undefined;
    if (unguarded && arc.source !== arc.target && outgoing.get(arc.source) === 1 && incoming.get(arc.target) === 1 && plain(arc.target) && arc.target !== net.entry) {
      next.set(arc.source, arc.target);
      follows.add(arc.target);
    }
  }
  const found: string[][] = [];
  for (const first of next.keys()) {
    if (follows.has(first)) continue;
    const chain = [first];
    for (let at = next.get(first); at !== undefined && !chain.includes(at); at = next.get(at)) chain.push(at);
    if (chain.length >= SHORTEST) found.push(chain);
  }
  return found;
}

/** The net with its sequences as single nodes, except those that are `opened`. */
export function grouped(net: Net, opened: Set<string>): Grouped {
  const groups = new Map<string, string[]>();
  const groupOf = new Map<string, string>();
  for (const chain of sequences(net)) {
    if (chain.some((step) => opened.has(step))) continue;
    const name = `${chain[0]} … ${chain[chain.length - 1]}`;
    groups.set(name, chain);
    chain.forEach((step) => groupOf.set(step, name));
  }
  if (!groups.size) return { net, groups, groupOf };
  const nodes: NetStep[] = [];
  for (const node of net.nodes) {
    const name = groupOf.get(node.step);
    if (name === undefined) nodes.push(node);
    else if (groups.get(name)![0] === node.step) nodes.push({ ...node, step: name, description: groups.get(name)!.join(" → "), loop: null, tasks: [] });
  }
  const arcs = net.arcs
    .filter((arc) => groupOf.get(arc.source) === undefined || groupOf.get(arc.source) !== groupOf.get(arc.target))
    .map((arc) => ({ ...arc, source: groupOf.get(arc.source) ?? arc.source, target: groupOf.get(arc.target) ?? arc.target }));
  return { net: { ...net, entry: groupOf.get(net.entry) ?? net.entry, nodes, arcs }, groups, groupOf };
}

const RANK: StepStatus[] = ["failed", "running", "parked", "scheduled", "cancelled", "pending", "success", "skipped"];

/** The moment of a group: the status that matters most among its steps, and how many of them ended. */
export function momentOf(name: string, steps: string[], moment: Moment): StepMoment {
  const known = steps.map((step) => moment.steps.get(step)).filter((each): each is StepMoment => each !== undefined);
  const missing = known.length < steps.length;
  const statuses = new Set<StepStatus>(known.map((each) => each.status));
  const begun = known.some((each) => each.status !== "pending");
  if (missing) statuses.add("pending");
  const status = begun && missing && !["failed", "running", "parked", "scheduled", "cancelled"].some((each) => statuses.has(each as StepStatus)) ? "pending" : (RANK.find((each) => statuses.has(each)) ?? "pending");
  return {
    step: name,
    status,
    runs: 0,
    open: known.reduce((sum, each) => sum + each.open, 0),
    parked: new Map(known.flatMap((each) => [...each.parked])),
    iterations: 0,
    iterating: 0,
    iterationsDone: 0,
    iterationsFailed: 0,
    tasksDone: 0,
    attempts: Math.max(0, ...known.map((each) => each.attempts)),
    retries: known.reduce((sum, each) => sum + each.retries, 0),
    task: known.find((each) => each.status === "running")?.step ?? known.find((each) => each.status === "failed")?.step ?? null,
    startedAt: null,
    endedAt: null,
    error: null,
    children: [],
    waits: known.reduce((sum, each) => sum + each.waits, 0),
  };
}
