/** One step at the selected event: status, duration, retries and error. */
import { Status } from "../common/components";
import { Link, setQuery } from "../common/router";
import { duration, Time } from "../common/times";
import type { NetStep } from "../net/layout";
import type { Moment } from "./moment";

interface Props {
  step: string;
  node: NetStep | null;
  moment: Moment;
  close: () => void;
  /** Null if the role does not permit it. */
  rerun: (() => void) | null;
}

export function StepPanel({ step, node, moment, close, rerun }: Props) {
  const at = moment.steps.get(step) ?? null;
  const status = at?.status ?? "pending";
  const end = at?.endedAt ?? moment.at;
  return (
    <section class="card side step-panel" aria-label={`Step ${step}`}>
      <div class="row">
        <h2 class="grow">{step}</h2>
        <button type="button" class="icon" onClick={close} aria-label="Close step">
          ✕
        </button>
      </div>
      {node?.description && <p class="quiet">{node.description}</p>}
      <dl>
        <dt>Status</dt>
        <dd>
          <Status status={status === "scheduled" ? "pending" : status} />
        </dd>
        {at?.startedAt && (
          <>
            <dt>Started</dt>
            <dd>
              <Time at={at.startedAt} />
            </dd>
            <dt>Took</dt>
            <dd class="number">{duration(Math.max(0, end - at.startedAt))}</dd>
          </>
        )}
        {at && at.runs > 1 && (
          <>
            <dt>Runs</dt>
            <dd class="number">{at.runs}</dd>
          </>
        )}
        {at && at.iterations > 0 && (
          <>
            <dt>Iterations</dt>
            <dd class="number">
              {at.iterationsDone.toLocaleString()} of {at.iterations.toLocaleString()}
              {at.iterating > 0 && `, ${at.iterating} running`}
              {at.iterationsFailed > 0 && <span class="wrong">, {at.iterationsFailed.toLocaleString()} failed</span>}
            </dd>
          </>
        )}
        {at && at.retries > 0 && (
          <>
            <dt>Retries</dt>
            <dd class="number">
              {at.retries}, up to {at.attempts} attempts
            </dd>
          </>
        )}
        {at && at.parked.size > 0 && (
          <>
            <dt>Waiting</dt>
            <dd>
              {at.parked.size} {at.parked.size === 1 ? "token" : "tokens"}: {[...new Set(at.parked.values())].join(", ")}
            </dd>
          </>
        )}
        {node && node.tasks.length > 0 && (
          <>
            <dt>Tasks</dt>
            <dd>
              {node.tasks.map((task) => (
                <div key={task.name} class={at?.task === task.name ? "current-task" : ""}>
                  {task.name} <span class="quiet">{task.kind}</span>
                </div>
              ))}
            </dd>
          </>
        )}
      </dl>
      {at?.error && (
        <div class="error-box">
          <strong>{at.error[0]}</strong>
          <p>{at.error[1]}</p>
        </div>
      )}
      {at && at.children.length > 0 && (
        <p>
          Children:{" "}
          {at.children.slice(0, 5).map((child, index) => (
            <>
              {index > 0 && ", "}
              <Link key={child} to={`/executions/${child}`}>
                {child}
              </Link>
            </>
          ))}
          {at.children.length > 5 && ` and ${at.children.length - 5} more`}
        </p>
      )}
      <p class="row">
        <button type="button" class="link" onClick={() => setQuery({ tab: "events" })}>
          Events
        </button>
        <button type="button" class="link" onClick={() => setQuery({ tab: "results" })}>
          Result
        </button>
        <button type="button" class="link" onClick={() => setQuery({ tab: "logs" })}>
          Logs
        </button>
        {rerun && (
          <button type="button" class="link" onClick={rerun}>
            Rerun from here
          </button>
        )}
      </p>
    </section>
  );
}
