/** One attempt of a task: its input, output, logs, and the other attempts. */
import { useEffect, useMemo, useState } from "preact/hooks";
import { api, type Page, type Problem } from "../common/api";
import { ErrorState, Loading, Status, Tabs } from "../common/components";
import { duration, exactly, Time } from "../common/times";
import { Ansi } from "./ansi";
import { JsonTree } from "./json";
import type { Line } from "./lines";
import { ERROR, IN_PROGRESS, TASK, type Log } from "./log";
import { OutputView, StoredValue } from "./results";
import type { Output, Reference } from "./snapshot";

/** The payload of `task.done`. */
export interface TaskDone {
  step: string;
  task: string;
  kind: string;
  outcome: { status: string; data?: unknown; ref?: Reference | null; error?: TaskError | null; meta?: Record<string, unknown>; helpers?: Record<string, unknown> };
  visit?: number;
  attempt?: number;
  path?: number[];
  do?: string;
  rule?: number;
  input?: Record<string, unknown> | null;
  input_ref?: Reference | null;
}

export interface TaskError {
  kind: string;
  message: string;
  retryable?: boolean;
  details?: { at?: string; line?: number; traceback?: unknown; [more: string]: unknown };
}

/** An event of the log, by its number. */
export function useEvent<T>(id: string, seq: number | null): { payload: T | null; problem: Problem | null } {
  const [found, setFound] = useState<{ seq: number; payload: T } | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  useEffect(() => {
    if (!seq) return;
    const leaving = new AbortController();
    setProblem(null);
    api
      .get<Page<{ payload: T }>>(`/api/executions/${id}/events`, { after: seq - 1, limit: 1 }, leaving.signal)
      .then((page) => setFound({ seq, payload: page.items[0].payload }))
      .catch((error) => leaving.signal.aborted || setProblem(error));
    return () => leaving.abort();
  }, [id, seq]);
  return { payload: found && found.seq === seq ? found.payload : null, problem };
}

type Tab = "input" | "output" | "log" | "attempts";

interface Props {
  id: string;
  log: Log;
  version: number;
  /** Index of a span of kind task. */
  span: number;
  onSpan: (span: number) => void;
}

export function AttemptView({ id, log, version, span, onSpan }: Props) {
  const [tab, setTab] = useState<Tab>("input");
  const spans = log.spans;
  const end = spans.end.data[span];
  const start = spans.start.data[span];
  const { payload, problem } = useEvent<TaskDone>(id, end || null);
  const attempts = useMemo(() => siblings(log, span), [log, version, span]);
  const where = { step: log.steps.texts[spans.step.data[span]], iteration: log.pathOf(start), attempt: spans.attempt.data[span], task: log.tasks.texts[spans.task.data[span]] };
  return (
    <section class="attempt" aria-label={`Task ${where.task}`}>
      <div class="row attempt-head">
        <h3>
          {where.step}
          {where.iteration !== null && ` [${where.iteration}]`} · {where.task}
          {where.attempt > 1 && ` · attempt ${where.attempt}`}
        </h3>
        <Status status={stateOf(spans.state.data[span], end)} />
        {end > 0 && <span class="quiet number">{duration(log.atOf(end) - log.spanStart(span))}</span>}
        <span class="quiet">
          <Time at={log.spanStart(span)} />
        </span>
      </div>
      <Tabs
        label="Task"
        id={`task-${span}`}
        tabs={[
          ["input", "Input"],
          ["output", "Output"],
          ["log", "Logs"],
          ["attempts", `Attempts ${attempts.length > 1 ? attempts.length : ""}`],
        ]}
        value={tab}
        onChange={setTab}
      />
      <div role="tabpanel" id={`panel-task-${span}-${tab}`} aria-labelledby={`tab-task-${span}-${tab}`} class="attempt-body">
        {problem ? (
          <ErrorState problem={problem} />
        ) : tab === "log" ? (
          <LastLines id={id} {...where} limit={200} />
        ) : tab === "attempts" ? (
          <ul class="plain attempts">
            {attempts.map((each) => (
              <li key={each}>
                <button type="button" class="link" aria-current={each === span ? "true" : undefined} onClick={() => onSpan(each)}>
                  attempt {spans.attempt.data[each]}
                </button>{" "}
                <Status status={stateOf(spans.state.data[each], spans.end.data[each])} />{" "}
                <span class="quiet number" title={exactly(log.spanStart(each))}>
                  {spans.end.data[each] > 0 && duration(log.atOf(spans.end.data[each]) - log.spanStart(each))}
                </span>{" "}
                <span class="wrong">{log.more.get(spans.end.data[each])?.error?.[1]}</span>
              </li>
            ))}
          </ul>
        ) : !end ? (
          <p class="quiet">The task is running. Its {tab} is shown when it ends; its logs are live.</p>
        ) : !payload ? (
          <Loading />
        ) : tab === "input" ? (
          <InputView done={payload} />
        ) : (
          <OutputView output={outputOf(payload)} />
        )}
      </div>
    </section>
  );
}

export const stateOf = (state: number, end: number) => (!end || state === IN_PROGRESS ? "running" : state === ERROR ? "failed" : state === 3 ? "skipped" : "success");

/** All attempts of the same visit of a task. */
function siblings(log: Log, span: number): number[] {
  const { kind, run, path, task } = log.spans;
  const found: number[] = [];
  for (let at = 0; at < log.spans.length; at++) {
    if (kind.data[at] === TASK && run.data[at] === run.data[span] && path.data[at] === path.data[span] && task.data[at] === task.data[span]) found.push(at);
  }
  return found;
}

export function outputOf({ outcome }: TaskDone): Output {
  return { status: outcome.status, data: outcome.data ?? null, ref: outcome.ref ?? null, error: outcome.error ?? null, ...(outcome.helpers ?? {}), meta: outcome.meta } as Output;
}

/** The rendered input of an attempt, inline or stored. */
export function InputView({ done }: { done: TaskDone }) {
  if (done.input_ref) return <StoredValue reference={done.input_ref} />;
  if (!done.input || !Object.keys(done.input).length) {
    return <p class="quiet">No field of this task has a template, or inputs are not recorded (setting record_inputs). Fields without a template are in the playbook.</p>;
  }
  return <JsonTree value={done.input} open={3} />;
}

/** The last lines that an attempt printed. */
export function LastLines({ id, step, iteration, attempt, task, limit }: { id: string; step: string; iteration: string | null; attempt: number; task: string; limit: number }) {
  const [lines, setLines] = useState<Line[] | null>(null);
  useEffect(() => {
    const leaving = new AbortController();
    api
      .get<Page<Line>>(`/api/executions/${id}/logs`, { step, task, attempt, ...(iteration !== null ? { iteration } : {}), limit: 10_000 }, leaving.signal)
      .then((page) => setLines(page.items))
      .catch(() => leaving.signal.aborted || setLines([]));
    return () => leaving.abort();
  }, [id, step, iteration, attempt, task]);
  if (!lines) return <Loading />;
  if (!lines.length) return <p class="quiet">It printed nothing.</p>;
  return (
    <>
      {lines.length > limit && <p class="quiet">the last {limit} of {lines.length.toLocaleString()} lines</p>}
      <pre class="text log-tail" tabIndex={0}>
        {lines.slice(-limit).map((line) => (
          <span key={line.seq} class={`log-plain ${line.stream} ${line.dropped ? "dropped" : (line.level ?? "")}`}>
            {line.dropped ? `${line.dropped} ${line.text}` : <Ansi text={line.text} />}
            {"\n"}
          </span>
        ))}
      </pre>
    </>
  );
}
