/** The failure of an execution: the error in words, the attempt that failed with its input, response, item and last lines,
 * the line of the playbook, the last success, and the way to rerun. */
import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { api, type Page } from "../common/api";
import { Button, ErrorState, Loading } from "../common/components";
import { Copy } from "../common/copy";
import { Link, setQuery } from "../common/router";
import { duration, Time } from "../common/times";
import type { Row } from "../executions/data";
import { pagePath } from "../playbooks/playbook";
import { InputView, LastLines, outputOf, useEvent, type TaskDone, type TaskError } from "./attempt";
import { inLine, useItems } from "./items";
import { JsonTree } from "./json";
import { ERROR, TASK, type Log } from "./log";
import { OutputView } from "./results";

interface Props {
  id: string;
  log: Log;
  version: number;
  path: string;
  playbookVersion: string | null;
  /** Null if the role does not permit it. */
  rerun: ((step: string | null) => void) | null;
  because: string[] | null;
  /** The explanation of the server, with the path of the tokens. */
  children: ComponentChildren;
}

/** What failed: the step, and the span of the attempt that caused it, if a task did. */
export function causeOf(log: Log): { step: string | null; span: number | null; error: [string, string] | null; seq: number } | null {
  let seq = log.length;
  while (seq > 0 && log.nameOf(seq) !== "workflow.finished" && log.nameOf(seq) !== "playbook.request.evaluated") seq--;
  if (!seq) return null;
  const error = log.more.get(seq)?.error ?? null;
  const step = log.stepOf(seq);
  if (!step) return { step, span: null, error, seq };
  const { spans } = log;
  // Of a loop, the iteration that failed first; of a step, its last attempt with an error.
  let path = -2;
  for (let at = 1; at <= log.length && path === -2; at++) {
    if (log.nameOf(at) === "loop.iteration.failed" && log.stepOf(at) === step && log.more.get(at)?.error?.[0] !== "cancelled") path = log.path.data[at - 1];
  }
  for (let at = spans.length - 1; at >= 0; at--) {
    if (spans.kind.data[at] !== TASK || spans.state.data[at] !== ERROR || log.steps.texts[spans.step.data[at]] !== step) continue;
    if (path !== -2 && spans.path.data[at] !== path) continue;
    return { step, span: at, error, seq };
  }
  return { step, span: null, error, seq };
}

export function Failure({ id, log, version, path, playbookVersion, rerun, because, children }: Props) {
  const cause = useMemo(() => causeOf(log), [log, version]);
  const span = cause?.span ?? null;
  const end = span === null ? null : log.spans.end.data[span];
  const { payload, problem } = useEvent<TaskDone>(id, end);
  const itemOf = useItems(id, log, version, cause?.step ?? null);
  const iteration = span === null ? null : log.pathOf(log.spans.start.data[span]);
  const item = span === null || iteration === null ? undefined : itemOf(log.spans.run.data[span], iteration);
  if (!cause) return <p class="quiet">No failure is recorded.</p>;
  const error: TaskError | null = payload?.outcome.error ?? (cause.error ? { kind: cause.error[0], message: cause.error[1] } : null);
  const attempt = span === null ? 1 : log.spans.attempt.data[span];
  const others = failedIterations(log, cause.step);
  const line = lineOf(error);
  return (
    <div class="failure">
      <div class="failure-error" role="alert">
        <p class="failure-kind">{KINDS[error?.kind ?? ""] ?? error?.kind ?? "The execution failed"}</p>
        <pre class="failure-message">{error?.message ?? because?.[0]}</pre>
        <p class="failure-where">
          {cause.step ? (
            <>
              in step{" "}
              <button type="button" class="link" onClick={() => setQuery({ step: cause.step })}>
                {cause.step}
              </button>
            </>
          ) : (
            "before the first step"
          )}
          {span !== null && (
            <>
              , task <strong>{log.tasks.texts[log.spans.task.data[span]]}</strong>
            </>
          )}
          {iteration !== null && <>, iteration {iteration}</>}
          {attempt > 1 && <>, attempt {attempt}</>}
          {span !== null && end ? <>, after {duration(log.atOf(end) - log.spanStart(span))}</> : null}
          {error && <Copy text={`${error.kind}: ${error.message}`} what="the error" />}
        </p>
        {others > 1 && (
          <p>
            <button type="button" class="link" onClick={() => setQuery({ tab: "iterations", step: cause.step, only: "failed" })}>
              {others.toLocaleString()} iterations failed
            </button>
          </p>
        )}
        <div class="row failure-actions">
          {rerun && (
            <Button kind="primary" onClick={() => rerun(cause.step)}>
              Fix and rerun from here
            </Button>
          )}
          {path && (
            <Link class="button" to={`${pagePath(path)}${line ? `?line=${line}` : ""}`}>
              Edit playbook{line ? ` at line ${line}` : ""}
            </Link>
          )}
          <LastSuccess id={id} path={path} />
        </div>
      </div>
      <div class="failure-parts">
        <Source id={id} line={line} path={path} version={playbookVersion} />
        {problem ? <ErrorState problem={problem} /> : null}
        {iteration !== null && item !== undefined && (
          <section>
            <h3>Item {iteration}</h3>
            {typeof item === "object" && item !== null ? <JsonTree value={item} open={2} /> : <pre class="text">{inLine(item)}</pre>}
          </section>
        )}
        {span !== null && (
          <>
            <section>
              <h3>Input</h3>
              {payload ? <InputView done={payload} /> : <Loading />}
            </section>
            <section>
              <h3>Response</h3>
              {payload ? <OutputView output={{ ...outputOf(payload), error: null, meta: undefined, py: undefined }} quietly /> : <Loading />}
              <Traceback error={error} />
            </section>
            <section>
              <h3>Last lines</h3>
              <LastLines id={id} step={cause.step!} iteration={iteration} attempt={attempt} task={log.tasks.texts[log.spans.task.data[span]]} limit={12} />
            </section>
          </>
        )}
      </div>
      <details class="explanation">
        <summary>Explanation and path of the tokens</summary>
        <section aria-label="Why">{children}</section>
      </details>
    </div>
  );
}

function failedIterations(log: Log, step: string | null): number {
  let count = 0;
  for (let seq = 1; seq <= log.length; seq++) if (log.nameOf(seq) === "loop.iteration.failed" && log.stepOf(seq) === step) count++;
  return count;
}

/** The line of the playbook that the error names. */
function lineOf(error: TaskError | null): number | null {
  const given = error?.details?.line ?? /:(\d+)(?::\d+)?$/.exec(error?.details?.at ?? "")?.[1] ?? /^[^\n:]*:(\d+):\d+/.exec(error?.message ?? "")?.[1];
  return given ? Number(given) : null;
}

function Traceback({ error }: { error: TaskError | null }) {
  const trace = error?.details?.traceback;
  const lines = Array.isArray(trace) ? trace.map(String) : typeof trace === "string" && trace ? [trace] : [];
  if (lines.length < 2) return null;
  return (
    <details>
      <summary>Traceback</summary>
      <pre class="text">{lines.join("\n")}</pre>
    </details>
  );
}

const AROUND = 4;

/** The lines of the playbook around the failed one, as the execution ran it. */
function Source({ id, line, path, version }: { id: string; line: number | null; path: string; version: string | null }) {
  const [text, setText] = useState<string | null>(null);
  useEffect(() => {
    if (!line) return;
    const leaving = new AbortController();
    api.get<{ content: string }>(`/api/executions/${id}/playbook`, {}, leaving.signal).then(
      (found) => setText(found.content),
      () => {},
    );
    return () => leaving.abort();
  }, [id, line]);
  if (!line || text === null) return null;
  const lines = text.split("\n");
  if (line > lines.length) return null;
  const first = Math.max(1, line - AROUND);
  return (
    <section>
      <h3>
        Playbook, line {line}
        {version && <span class="quiet"> of version {version}</span>}
      </h3>
      <pre class="text source" tabIndex={0}>
        {lines.slice(first - 1, line + AROUND - 1).map((each, at) => (
          <span key={at} class={first + at === line ? "source-line at" : "source-line"}>
            <span class="source-number">{first + at}</span>
            {each}
            {"\n"}
          </span>
        ))}
      </pre>
      {path && (
        <p>
          <Link to={`${pagePath(path)}?line=${line}${version ? `&version=${version}` : ""}`}>Open in the editor</Link>
        </p>
      )}
    </section>
  );
}

function LastSuccess({ id, path }: { id: string; path: string }) {
  const [row, setRow] = useState<Row | null | undefined>(undefined);
  useEffect(() => {
    if (!path) return;
    const leaving = new AbortController();
    api.get<Page<Row>>("/api/executions", { path, status: "success", before: id, limit: 1 }, leaving.signal).then(
      (page) => setRow(page.items[0] ?? null),
      () => {},
    );
    return () => leaving.abort();
  }, [id, path]);
  if (row === undefined) return null;
  if (row === null) return <span class="quiet">No earlier execution of this playbook succeeded.</span>;
  return (
    <span>
      Last success <Link to={`/executions/${row.execution_id}`}><Time at={row.started_at} /></Link>
      {" · "}
      <Link to={`/compare/${row.execution_id}/${id}`}>Compare</Link>
    </span>
  );
}

/** Error kinds in words. */
const KINDS: Record<string, string> = {
  connection: "A connection failed",
  timeout: "It took too long",
  rate_limit: "The service limits the rate of requests",
  auth: "Access was refused",
  not_found: "Something was not found",
  client_error: "The service rejected the request",
  server_error: "The service failed",
  schema: "A value does not have the required shape",
  parse: "A response could not be parsed",
  template: "A template could not be evaluated",
  python: "Python code raised an exception",
  shell: "A command failed",
  "db.connection": "The database could not be reached",
  "db.constraint": "A constraint of the database was violated",
  "db.deadlock": "The database reported a deadlock",
  "db.timeout": "The database took too long",
  "db.syntax": "The database rejected a statement",
  "storage.quota": "The store is full",
  "storage.access": "The store refused access",
  "ref.unresolved": "A stored result could not be found",
  "ref.corrupt": "A stored result is damaged",
  "ctx.conflict": "Two iterations wrote different values",
  "state.conflict": "Another execution changed the state",
  "pipeline.runaway": "A pipeline did not end",
  "worker.lost": "Workers were lost repeatedly",
  ambiguous: "It is unknown whether a task took effect",
  cancelled: "It was cancelled",
  limit: "A limit was exceeded",
  unknown: "It failed",
};
