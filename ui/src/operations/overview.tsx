/** Overview: health, queue, workers, and charts of the last hour. */
import { useEffect, useMemo, useState } from "preact/hooks";
import { address, Problem } from "../common/api";
import { useFetch } from "../common/fetch";
import { ErrorState, Loading } from "../common/components";
import { Link } from "../common/router";
import { duration, Time } from "../common/times";
import { Chart } from "../common/chart";

interface Sample {
  at: string;
  queue_depth: number;
  oldest_wait_s: number;
  leases: number;
  workers: number;
  slots: number;
  started_per_s: number;
  ended_per_s: number;
  failed_per_s: number;
  events_per_s: number;
}

interface Pool {
  pool: string;
  waiting: number;
  oldest_wait_s: number;
  workers: number;
  slots: number;
}

interface OperationsData {
  at: string;
  executions: Record<string, number>;
  pools: Pool[];
  leases: number;
  last_progress_at: string | null;
  every_s: number;
  samples: Sample[];
}

const EVERY = 5000;

export function Overview() {
  const { value, problem, reload } = useFetch<OperationsData>("/api/operations", {}, EVERY);
  if (!value) return problem ? <ErrorState problem={problem} retry={reload} /> : <Loading what="Loading overview" />;
  const slots = value.pools.reduce((sum, pool) => sum + pool.slots, 0);
  const workers = value.pools.reduce((sum, pool) => sum + pool.workers, 0);
  const waiting = value.pools.reduce((sum, pool) => sum + pool.waiting, 0);
  const oldest = Math.max(0, ...value.pools.map((pool) => pool.oldest_wait_s));
  return (
    <div class="overview">
      <Health data={value} problem={problem} />
      <div class="tiles">
        <Tile words="Executions running" value={value.executions.running ?? 0} to="/executions?status=running" />
        <Tile words="Executions failed" value={value.executions.failed ?? 0} to="/executions?status=failed" />
        <Tile words="Runs waiting" value={waiting} more={waiting ? `oldest: ${duration(oldest * 1000)}` : "queue is empty"} />
        <Tile words="Slots in use" value={`${value.leases} / ${slots}`} more={workers === 1 ? "1 worker" : `${workers} workers`} to="/operations/workers" />
      </div>
      <Charts data={value} />
      <Pools pools={value.pools} />
    </div>
  );
}

function Tile({ words, value, more, to }: { words: string; value: number | string; more?: string; to?: string }) {
  return (
    <div class="tile card">
      <div class="quiet">{to ? <Link to={to}>{words}</Link> : words}</div>
      <div class="big number">{value}</div>
      {more && <div class="quiet">{more}</div>}
    </div>
  );
}

function Charts({ data }: { data: OperationsData }) {
  // The last sample covers a partial interval: rates over less than half an interval are not meaningful.
  const samples = useMemo(() => settled(data.samples, data.every_s * 1000), [data.samples]);
  const times = useMemo(() => samples.map((each) => Date.parse(each.at)), [samples]);
  const every = data.every_s * 1000;
  const of = (name: keyof Sample, by = 1) => samples.map((each) => Number(each[name]) * by);
  return (
    <div class="charts">
      <Chart
        title="Queue"
        unit="runs waiting for a worker"
        times={times}
        every={every}
        series={[{ name: "waiting", colour: "wait", values: of("queue_depth"), area: true }]}
      />
      <Chart
        title="Capacity"
        unit="runs leased by workers"
        times={times}
        every={every}
        series={[
          { name: "in use", colour: "run", values: of("leases"), area: true },
          { name: "slots", colour: "quiet", values: of("slots"), dashed: true },
        ]}
      />
      <Chart
        title="Executions"
        unit="per minute"
        times={times}
        every={every}
        digits={1}
        series={[
          { name: "ended", colour: "ok", values: of("ended_per_s", 60), area: true },
          { name: "failed", colour: "bad", values: of("failed_per_s", 60) },
        ]}
      />
      <Chart
        title="Events"
        unit="per second"
        times={times}
        every={every}
        digits={1}
        series={[{ name: "events", colour: "accent", values: of("events_per_s"), area: true }]}
      />
    </div>
  );
}

function settled(samples: Sample[], every: number): Sample[] {
  const [before, last] = samples.slice(-2);
  return last && Date.parse(last.at) - Date.parse(before.at) < every / 2 ? samples.slice(0, -1) : samples;
}

interface Ready {
  ready: boolean;
  problems: string[];
  warnings?: string[];
}

/** Readiness and its problems; `/readyz` returns them with status 503, too. */
function useReady(): Ready | null {
  const [ready, setReady] = useState<Ready | null>(null);
  useEffect(() => {
    const removing = new AbortController();
    const poll = async () => {
      try {
        const response = await fetch(address("/readyz"), { signal: removing.signal, cache: "no-store" });
        setReady(await response.json());
      } catch {
        if (!removing.signal.aborted) setReady({ ready: false, problems: ["server unreachable"] });
      }
    };
    void poll();
    const timer = setInterval(poll, EVERY);
    return () => {
      removing.abort();
      clearInterval(timer);
    };
  }, []);
  return ready;
}

function Health({ data, problem }: { data: OperationsData; problem: Problem | null }) {
  const ready = useReady();
  const problems = [...(ready?.problems ?? []), ...(problem && !problem.unreachable ? [problem.message] : [])];
  const warnings = ready?.warnings ?? [];
  const state = problems.length ? "failed" : warnings.length ? "waiting" : "ok";
  const words = problems.length ? "Not ready" : warnings.length ? "Healthy, with warnings" : "Healthy";
  return (
    <section class={`health card ${state}`} aria-label="Health">
      <div class="row">
        <span class={`status ${state}`} role="status">
          <i aria-hidden="true" />
          {ready ? words : "Checking …"}
        </span>
        <span class="grow" />
        <span class="quiet">
          last progress <Time at={data.last_progress_at} />
        </span>
      </div>
      {[...problems, ...warnings].length > 0 && (
        <ul>
          {problems.map((each) => (
            <li key={each} class="wrong">
              {each}
            </li>
          ))}
          {warnings.map((each) => (
            <li key={each}>{each}</li>
          ))}
        </ul>
      )}
    </section>
  );
}

function Pools({ pools }: { pools: Pool[] }) {
  if (!pools.length) {
    return (
      <section class="card pad" aria-label="Pools">
        <h2>No workers connected</h2>
        <p class="quiet">Executions wait until a worker connects. Start one on a machine that can reach the systems your tools use:</p>
        <pre tabIndex={0}>noetl worker start</pre>
      </section>
    );
  }
  return (
    <section class="card scrolled" aria-label="Pools">
      <table class="list">
        <thead>
          <tr>
            <th>Pool</th>
            <th class="right">Waiting</th>
            <th class="right">Oldest wait</th>
            <th class="right">Workers</th>
            <th class="right">Slots</th>
          </tr>
        </thead>
        <tbody>
          {pools.map((each) => (
            <tr key={each.pool}>
              <td>
                <strong>{each.pool}</strong>
                {each.waiting > 0 && each.workers === 0 && (
                  <div class="wrong">
                    No workers in this pool: <code>noetl worker start --pool {each.pool}</code>
                  </div>
                )}
              </td>
              <td class="right number">{each.waiting}</td>
              <td class="right number">{each.waiting ? duration(each.oldest_wait_s * 1000) : "–"}</td>
              <td class="right number">{each.workers}</td>
              <td class="right number">{each.slots}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}
