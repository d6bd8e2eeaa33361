/** Status of the graph after event `seq`: tokens, parked, running, done, failed, skipped. */
import type { Log } from "./log";

export type StepStatus = "pending" | "parked" | "scheduled" | "running" | "success" | "failed" | "skipped" | "cancelled";

export interface StepMoment {
  step: string;
  status: StepStatus;
  runs: number;
  open: number;
  /** Waiting tokens by id, with the reason. */
  parked: Map<string, string>;
  iterations: number;
  iterating: number;
  iterationsDone: number;
  iterationsFailed: number;
  tasksDone: number;
  /** Largest number of attempts of a task. */
  attempts: number;
  retries: number;
  task: string | null;
  startedAt: number | null;
  endedAt: number | null;
  error: [kind: string, message: string] | null;
  children: string[];
  /** Open waits of its tasks. */
  waits: number;
}

export interface Moment {
  seq: number;
  at: number;
  status: string;
  startedAt: number;
  steps: Map<string, StepMoment>;
  /** `step#index` -> how often the arc was taken, and how often its guard was false. */
  arcs: Map<string, { taken: number; refused: number }>;
  error: [kind: string, message: string] | null;
  /** Open waits for a signal or for time. */
  waits: number;
}

const fresh = (step: string): StepMoment => ({
  step,
  status: "pending",
  runs: 0,
  open: 0,
  parked: new Map(),
  iterations: 0,
  iterating: 0,
  iterationsDone: 0,
  iterationsFailed: 0,
  tasksDone: 0,
  attempts: 0,
  retries: 0,
  task: null,
  startedAt: null,
  endedAt: null,
  error: null,
  children: [],
  waits: 0,
});

export function momentAt(log: Log, seq: number): Moment {
  const end = Math.min(seq, log.length);
  const steps = new Map<string, StepMoment>();
  const arcs = new Map<string, { taken: number; refused: number }>();
  const parkedAt = new Map<string, StepMoment>();
  const of = (name: string) => {
    let found = steps.get(name);
    if (!found) steps.set(name, (found = fresh(name)));
    return found;
  };
  const unpark = (token: string) => {
    parkedAt.get(token)?.parked.delete(token);
    parkedAt.delete(token);
  };
  let waits = 0;
  let status = "pending";
  let paused = false;
  let error: Moment["error"] = null;
  let cancelled = false;
  const names = log.names.texts;
  for (let row = 0; row < end; row++) {
    const name = names[log.name.data[row]];
    const stepNumber = log.step.data[row];
    const step = stepNumber < 0 ? null : of(log.steps.texts[stepNumber]);
    const more = log.more.get(row + 1);
    switch (name) {
      case "task.started":
        step!.status = "running";
        step!.task = log.tasks.texts[log.task.data[row]] ?? null;
        if (log.attempt.data[row] > step!.attempts) step!.attempts = log.attempt.data[row];
        break;
      case "task.done":
        step!.tasksDone++;
        if (log.attempt.data[row] > step!.attempts) step!.attempts = log.attempt.data[row];
        if (more?.do === "retry") step!.retries++;
        break;
      case "loop.iteration.started":
        step!.iterating++;
        step!.status = "running";
        break;
      case "loop.iteration.done":
        step!.iterating = Math.max(0, step!.iterating - 1);
        step!.iterationsDone++;
        break;
      case "loop.iteration.failed":
        step!.iterating = Math.max(0, step!.iterating - 1);
        step!.iterationsDone++;
        step!.iterationsFailed++;
        break;
      case "loop.started":
        step!.iterations += more?.count ?? 0;
        step!.status = "running";
        break;
      case "step.scheduled":
        step!.runs++;
        step!.open++;
        step!.status = "scheduled";
        step!.error = null;
        step!.endedAt = null;
        step!.startedAt ??= log.at.data[row];
        more?.tokens?.forEach(unpark);
        break;
      case "step.started":
        step!.status = "running";
        break;
      case "step.done":
      case "step.failed":
        step!.open = Math.max(0, step!.open - 1);
        step!.endedAt = log.at.data[row];
        step!.task = null;
        step!.iterating = 0;
        step!.status = step!.open ? "running" : name === "step.done" ? "success" : "failed";
        if (name === "step.failed") {
          step!.error = more?.error ?? null;
          if (more?.error?.[0] === "cancelled") step!.status = "cancelled";
        }
        break;
      case "step.skipped":
        if (more?.token) unpark(more.token);
        if (!step!.runs) step!.status = "skipped";
        break;
      case "token.parked":
        step!.parked.set(more!.token!, more!.reason ?? "");
        parkedAt.set(more!.token!, step!);
        break;
      case "next.evaluated":
        for (const [index, , held, token] of more?.arcs ?? []) {
          const key = `${step!.step}#${index}`;
          const arc = arcs.get(key) ?? { taken: 0, refused: 0 };
          if (token) arc.taken++;
          else if (!held) arc.refused++;
          arcs.set(key, arc);
        }
        break;
      case "wait.started":
        waits++;
        step!.waits++;
        break;
      case "wait.finished":
        waits = Math.max(0, waits - 1);
        step!.waits = Math.max(0, step!.waits - 1);
        break;
      case "child.started":
        step!.children.push(more!.child!);
        break;
      case "workflow.started":
        status = "running";
        break;
      case "execution.paused":
        paused = true;
        break;
      case "execution.resumed":
        paused = false;
        break;
      case "execution.cancelled":
        cancelled = true;
        break;
      case "playbook.request.evaluated":
        if (more?.error) error = more.error;
        break;
      case "workflow.finished":
        if (more?.error) error = more.error;
        break;
      case "playbook.processed":
        status = more?.outcome ?? "success";
        break;
    }
  }
  const ended = status === "success" || status === "failed" || status === "cancelled";
  for (const step of steps.values()) {
    if (ended && step.open) step.status = "cancelled";
    else if (step.open && step.waits && step.waits >= Math.max(step.open, step.iterating)) step.status = "parked";
    else if (!step.open && step.parked.size && step.status !== "failed") step.status = "parked";
    else if (step.status === "scheduled" && !ended && step.iterating) step.status = "running";
  }
  const active = [...steps.values()].some((step) => step.status === "running" || step.status === "scheduled");
  if (status === "running" && waits && !active) status = "waiting";
  return {
    seq: end,
    at: end ? log.atOf(end) : 0,
    status: ended ? status : cancelled ? "cancelled" : paused ? "paused" : status,
    startedAt: log.length ? log.atOf(1) : 0,
    steps,
    arcs,
    error,
    waits: ended ? 0 : waits,
  };
}
