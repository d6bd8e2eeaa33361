/** Output of python and shell tasks, latest task run first. */
import { useEffect, useMemo, useState } from "preact/hooks";
import { api, type Page } from "../common/api";
import { Button, EmptyState, ErrorState, Loading } from "../common/components";
import { Time } from "../common/times";
import type { Net } from "../net/layout";
import type { Log } from "./log";

const PIECE = 10;
const KINDS = new Set(["python", "shell", "script"]);

export function Logs({ log, version, id, seq, step, net }: { log: Log; version: number; id: string; seq: number; step: string | null; net: Net | null }) {
  const [most, setMost] = useState(PIECE);
  const kinds = useMemo(() => {
    const found = new Map<string, string>();
    for (const node of net?.nodes ?? []) for (const task of node.tasks) found.set(`${node.step}\n${task.name}`, task.kind);
    return found;
  }, [net]);
  const runs = useMemo(() => {
    const found: number[] = [];
    for (let at = Math.min(seq, log.length); at > 0; at--) {
      if (log.nameOf(at) !== "task.done" || (step && log.stepOf(at) !== step)) continue;
      const kind = kinds.get(`${log.stepOf(at)}\n${log.taskOf(at)}`);
      if (kind === undefined || KINDS.has(kind)) found.push(at);
    }
    return found;
  }, [log, version, seq, step, kinds]);
  if (!runs.length) {
    return (
      <EmptyState title="No logs">
        <p>Output of python and shell tasks is shown when they end{step ? `; step ${step} has no output yet` : ""}.</p>
      </EmptyState>
    );
  }
  return (
    <div class="logs">
      {runs.slice(0, most).map((at) => (
        <TaskLog key={at} id={id} seq={at} log={log} />
      ))}
      {runs.length > most && <Button onClick={() => setMost(most + PIECE)}>{(runs.length - most).toLocaleString()} earlier task runs</Button>}
    </div>
  );
}

interface TaskDone {
  payload: { kind: string; outcome: { data?: any; meta?: { log?: string }; error?: { kind: string; message: string; details?: { traceback?: unknown } } } };
}

/** A traceback, as a list of lines or as text. */
const lines = (trace: unknown): string[] => (Array.isArray(trace) ? trace.map(String) : typeof trace === "string" && trace ? [trace] : []);

function TaskLog({ id, seq, log }: { id: string; seq: number; log: Log }) {
  const [event, setEvent] = useState<TaskDone | null>(null);
  const [problem, setProblem] = useState<unknown>(null);
  useEffect(() => {
    const leaving = new AbortController();
    api
      .get<Page<TaskDone>>(`/api/executions/${id}/events`, { after: seq - 1, limit: 1 }, leaving.signal)
      .then((page) => setEvent(page.items[0]))
      .catch((error) => leaving.signal.aborted || setProblem(error));
    return () => leaving.abort();
  }, [id, seq]);
  const outcome = event?.payload.outcome;
  const shell = event?.payload.kind !== "python" && outcome?.data && typeof outcome.data === "object" ? outcome.data : null;
  const texts: [string, string][] = [];
  if (outcome?.meta?.log) texts.push(["", outcome.meta.log]);
  else {
    if (shell?.stdout) texts.push(["", String(shell.stdout)]);
    if (shell?.stderr) texts.push(["stderr", String(shell.stderr)]);
  }
  if (outcome?.error) texts.push(["error", [...lines(outcome.error.details?.traceback), outcome.error.message].join("\n")]);
  const failed = log.state.data[seq - 1] === 2;
  return (
    <section class="task-log">
      <h3>
        <span class={failed ? "wrong" : ""}>
          {log.stepOf(seq)} · {log.taskOf(seq)}
          {log.pathOf(seq) !== null && ` [${log.pathOf(seq)}]`}
          {log.attempt.data[seq - 1] > 1 && ` attempt ${log.attempt.data[seq - 1]}`}
        </span>{" "}
        <span class="quiet">
          {event?.payload.kind} · <Time at={log.atOf(seq)} />
        </span>
      </h3>
      {problem ? (
        <ErrorState problem={problem} />
      ) : !event ? (
        <Loading />
      ) : texts.length ? (
        texts.map(([stream, text]) => (
          <pre key={stream} class={`text ${stream}`}>
            {text.replace(/\n$/, "")}
          </pre>
        ))
      ) : (
        <p class="quiet">No output.</p>
      )}
    </section>
  );
}
