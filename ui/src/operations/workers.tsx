/** Every worker that asked for work lately: its slots, what it holds, its last sign of life. */
import type { Page } from "../frame/api";
import { useFetched } from "../frame/fetched";
import { EmptyState, ErrorState, Loading } from "../frame/pieces";
import { Link } from "../frame/router";
import { duration, exactly, Time, useNow } from "../frame/times";

interface Worker {
  worker: string;
  pool: string;
  slots: number;
  labels: string[];
  first_seen: string;
  last_seen: string;
  leases: Lease[];
}

interface Lease {
  run_id: string;
  epoch: number;
  expires_in_s: number | null;
}

const SILENT = 60_000; // a worker asks, extends or listens at least every half minute
const SHOWN = 6;

export function Workers() {
  const { value, problem, again } = useFetched<Page<Worker>>("/api/workers", {}, 3000);
  const now = useNow(true);
  if (problem && !value) return <ErrorState problem={problem} retry={again} />;
  if (!value) return <Loading what="Asking for workers" />;
  if (!value.items.length) {
    return (
      <EmptyState title="No worker has asked for work">
        <p>Workers run the tools of a playbook; the server only decides what comes next. Start one:</p>
        <pre tabIndex={0}>noetl worker start</pre>
        <p>It needs the server's address and a token of the role worker. `noetl dev` starts a server with workers.</p>
      </EmptyState>
    );
  }
  return (
    <div class="card scrolled">
      <table class="list">
        <thead>
          <tr>
            <th>Worker</th>
            <th>Pool</th>
            <th>Slots in use</th>
            <th>Holds</th>
            <th>Last heard of</th>
            <th>Since</th>
          </tr>
        </thead>
        <tbody>
          {value.items.map((each) => {
            const ago = Math.max(0, now - Date.parse(each.last_seen));
            const silent = ago > SILENT;
            return (
              <tr key={each.worker}>
                <td>
                  <span class={`status ${silent ? "failed" : "ok"}`}>
                    <i aria-hidden="true" />
                    <span class="mono">{each.worker}</span>
                  </span>
                  {each.labels.length > 0 && <div class="quiet">{each.labels.join(", ")}</div>}
                </td>
                <td>{each.pool}</td>
                <td>
                  <Load used={each.leases.length} of={each.slots} />
                </td>
                <td>
                  <Held leases={each.leases} />
                </td>
                <td>
                  <time dateTime={each.last_seen} title={exactly(each.last_seen)} class={silent ? "wrong" : ""}>
                    {ago < 2000 ? "just now" : `${ago < 60_000 ? `${Math.round(ago / 1000)} s` : duration(ago)} ago`}
                  </time>
                  {silent && <div class="quiet">silent: what it held is given to others when the lease ends</div>}
                </td>
                <td>
                  <Time at={each.first_seen} />
                </td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}

function Load({ used, of }: { used: number; of: number }) {
  return (
    <span class="load">
      <meter min={0} max={Math.max(of, 1)} value={Math.min(used, of)} aria-label={`${used} of ${of} slots in use`} />
      <span class="number">
        {used} / {of}
      </span>
    </span>
  );
}

/** Runs as links to their executions; a run's id begins with its execution's, then the step. */
function Held({ leases }: { leases: Lease[] }) {
  if (!leases.length) return <span class="quiet">nothing</span>;
  const soonest = Math.min(...leases.map((each) => each.expires_in_s ?? Infinity));
  return (
    <span class="held">
      {leases.slice(0, SHOWN).map(({ run_id: run, epoch, expires_in_s: left }) => {
        const [head, iteration] = run.split("/");
        const [execution, step] = head.split(":");
        const words = left === null ? "the lease does not end" : `the lease ends in ${left} s unless the worker is heard of`;
        return (
          <Link key={run} to={`/executions/${execution}`} title={`${run}, epoch ${epoch}: ${words}`} class="mono">
            {step}
            {iteration ? `[${iteration}]` : ""}
          </Link>
        );
      })}
      {leases.length > SHOWN && <span class="quiet">and {leases.length - SHOWN} more</span>}
      {soonest < Infinity && <span class="quiet number">leased for {Math.round(soonest)} s more</span>}
    </span>
  );
}
