/** Connected workers: slots, leases and last heartbeat. */
import type { Page } from "../common/api";
import { useFetch } from "../common/fetch";
import { EmptyState, ErrorState, Loading } from "../common/components";
import { Link } from "../common/router";
import { duration, exactly, Time, useNow } from "../common/times";
import { List } from "./components";

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

const LOST_AFTER = 60_000; // a worker sends a request at least every 30 s
const SHOWN = 6;

export function Workers() {
  const { value, problem, reload } = useFetch<Page<Worker>>("/api/workers", {}, 3000);
  const now = useNow(true);
  if (problem && !value) return <ErrorState problem={problem} retry={reload} />;
  if (!value) return <Loading what="Loading workers" />;
  if (!value.items.length) {
    return (
      <EmptyState title="No workers connected">
        <p>Workers run the tools of a playbook; the server schedules them. Start a worker:</p>
        <pre tabIndex={0}>noetl worker start</pre>
        <p>It requires the server's URL and a token with the role worker. <code>noetl dev</code> starts a server with workers.</p>
      </EmptyState>
    );
  }
  return (
    <List heads={["Worker", "Pool", "Slots in use", "Leases", "Last heartbeat", "Since"]} actions={false}>
          {value.items.map((each) => {
            const ago = Math.max(0, now - Date.parse(each.last_seen));
            const silent = ago > LOST_AFTER;
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
                  {silent && <div class="quiet">no heartbeat: its runs are reassigned when their leases expire</div>}
                </td>
                <td>
                  <Time at={each.first_seen} />
                </td>
              </tr>
            );
          })}
    </List>
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

/** Runs as links to their executions; a run id starts with the execution id and the step. */
function Held({ leases }: { leases: Lease[] }) {
  if (!leases.length) return <span class="quiet">none</span>;
  const soonest = Math.min(...leases.map((each) => each.expires_in_s ?? Infinity));
  return (
    <span class="held">
      {leases.slice(0, SHOWN).map(({ run_id: run, epoch, expires_in_s: left }) => {
        const [head, iteration] = run.split("/");
        const [execution, step] = head.split(":");
        const words = left === null ? "the lease does not expire" : `the lease expires in ${left} s without a heartbeat`;
        return (
          <Link key={run} to={`/executions/${execution}`} title={`${run}, epoch ${epoch}: ${words}`} class="mono">
            {step}
            {iteration ? `[${iteration}]` : ""}
          </Link>
        );
      })}
      {leases.length > SHOWN && <span class="quiet">and {leases.length - SHOWN} more</span>}
      {soonest < Infinity && <span class="quiet number">lease expires in {Math.round(soonest)} s</span>}
    </span>
  );
}
