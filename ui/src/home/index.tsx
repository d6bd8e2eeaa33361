/** Home: how the installation did in the last days, what failed, and what runs next. All of it is stored by the server. */
import { useMemo } from "preact/hooks";
import { useFetch } from "../common/fetch";
import { Chart } from "../common/chart";
import { EmptyState, ErrorState, Loading, Status } from "../common/components";
import { go, Link, useQueryValue } from "../common/router";
import { duration, Time } from "../common/times";
import { Bars, percent } from "../executions/triage";
import { DayBars, type Day } from "./day_bars";
import type { Row } from "../executions/data";

interface Playbook {
  path: string;
  total: number;
  statuses: Record<string, number>;
  success_rate: number | null;
  p50_ms: number | null;
  p95_ms: number | null;
  newest: Row[];
}

export interface NextRun {
  schedule: string;
  path: string;
  next_at: string;
  last_execution: string | null;
  last_status: string | null;
  last_late_s: number | null;
  most_late_s: number | null;
}

interface HomeData {
  since: string;
  days: Day[];
  total: number;
  statuses: Record<string, number>;
  success_rate: number | null;
  p50_ms: number | null;
  p95_ms: number | null;
  causes: { cause: string; count: number; newest: string; paths: string[] }[];
  playbooks: Playbook[];
  upcoming: NextRun[];
}

interface Load {
  at: string;
  queue_depth: number;
  oldest_wait_s: number;
  workers: number;
  slots: number;
  leases: number;
}

interface Now {
  executions: Record<string, number>;
  pools: { waiting: number; oldest_wait_s: number; workers: number; slots: number }[];
  leases: number;
}

const SPANS: [string, string][] = [
  ["1", "today"],
  ["7", "7 days"],
  ["30", "30 days"],
  ["90", "90 days"],
];
const POLL = 10_000;

export function Home() {
  const [days, setDays] = useQueryValue("days", "7");
  const span = SPANS.some(([key]) => key === days) ? days : "7";
  const { value, problem, reload } = useFetch<HomeData>("/api/history", { days: span }, POLL);
  const { value: now } = useFetch<Now>("/api/operations", {}, POLL);
  if (!value) return problem ? <ErrorState problem={problem} retry={reload} /> : <Loading what="Loading home" />;
  const query = `range=${Date.parse(value.since)}-${Date.parse(value.since) + Number(span) * 86_400_000}`;
  return (
    <div class="home">
      <div class="page-head">
        <h1 class="grow">Home</h1>
        <select aria-label="Time range" value={span} onChange={(event) => setDays(event.currentTarget.value)}>
          {SPANS.map(([key, words]) => (
            <option key={key} value={key}>
              {words}
            </option>
          ))}
        </select>
      </div>
      <Tiles value={value} now={now} query={query} />
      {value.total > 0 && (
        <section class="card pad" aria-label="Executions per day">
          <h2>Executions per day</h2>
          <DayBars days={value.days} />
        </section>
      )}
      <div class="home-columns">
        <Playbooks rows={value.playbooks} />
        <div class="home-side">
          {value.causes.length > 0 && <Causes causes={value.causes} query={query} />}
          <NextRuns rows={value.upcoming} />
        </div>
      </div>
      <LoadHistory days={span} />
    </div>
  );
}

function Tiles({ value, now, query }: { value: HomeData; now: Now | null; query: string }) {
  const waiting = now?.pools.reduce((sum, pool) => sum + pool.waiting, 0) ?? 0;
  const workers = now?.pools.reduce((sum, pool) => sum + pool.workers, 0) ?? 0;
  const slots = now?.pools.reduce((sum, pool) => sum + pool.slots, 0) ?? 0;
  return (
    <div class="tiles">
      <Tile words="Executions" to={`/executions?${query}`} value={value.total.toLocaleString()} more={`${now?.executions.running ?? 0} running now`} />
      <Tile words="Succeeded" value={value.success_rate === null ? "–" : percent(value.success_rate)} more={`${(value.statuses.failed ?? 0).toLocaleString()} failed`} to={`/executions?status=failed&${query}`} />
      <Tile words="Duration, p50" value={value.p50_ms === null ? "–" : duration(value.p50_ms)} more={value.p95_ms === null ? "no executions succeeded" : `p95 ${duration(value.p95_ms)}`} />
      <Tile words="Runs waiting" value={now ? waiting : "–"} more={now ? `${now.leases} of ${slots} slots in use, ${workers} ${workers === 1 ? "worker" : "workers"}` : ""} to="/operations" />
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

function Playbooks({ rows }: { rows: Playbook[] }) {
  if (!rows.length) {
    return (
      <section class="card" aria-label="Playbooks">
        <EmptyState title="No executions in this period" action={<Link to="/playbooks">Go to playbooks</Link>}>
          <p>Playbooks that ran are listed here with their last executions.</p>
        </EmptyState>
      </section>
    );
  }
  return (
    <section class="card scrolled" aria-label="Playbooks">
      <table class="list stacked">
        <thead>
          <tr>
            <th>Playbook</th>
            <th>Last 30 executions</th>
            <th class="right">Succeeded</th>
            <th class="right">p50</th>
            <th class="right">p95</th>
          </tr>
        </thead>
        <tbody>
          {rows.map((each) => (
            <tr key={each.path}>
              <td>
                <Link to={`/playbooks/${each.path.split("/").map(encodeURIComponent).join("/")}?tab=runs`} class="title">
                  {each.path}
                </Link>
                <div class="quiet">
                  <Status status={each.newest[0]?.status ?? "pending"} /> <Time at={each.newest[0]?.started_at} />
                </div>
              </td>
              <td class="bars-cell">
                <Bars rows={each.newest} onOpen={(id) => go(`/executions/${id}`)} />
              </td>
              <td class="right number" data-label="Succeeded">{each.success_rate === null ? "–" : percent(each.success_rate)}</td>
              <td class="right number" data-label="p50">{each.p50_ms === null ? "–" : duration(each.p50_ms)}</td>
              <td class="right number" data-label="p95">{each.p95_ms === null ? "–" : duration(each.p95_ms)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

function Causes({ causes, query }: { causes: HomeData["causes"]; query: string }) {
  return (
    <section class="card pad" aria-label="Failures">
      <h2>Failures by cause</h2>
      <ul class="plain causes">
        {causes.map((each) => (
          <li key={each.cause}>
            <span class="number count">{each.count.toLocaleString()}×</span>
            <Link to={each.count === 1 ? `/executions/${each.newest}` : `/executions?status=failed&${query}&error=${encodeURIComponent(each.cause)}`} class="cause" title={`${each.cause}\n${each.paths.join(", ")}`}>
              {each.cause}
            </Link>
          </li>
        ))}
      </ul>
    </section>
  );
}

export function NextRuns({ rows }: { rows: NextRun[] }) {
  return (
    <section class="card pad" aria-label="Next runs">
      <h2>Next runs</h2>
      {rows.length === 0 ? (
        <p class="quiet">
          No schedule is active. <Link to="/operations/schedules">Add a schedule</Link>
        </p>
      ) : (
        <ul class="plain next-runs">
          {rows.map((each) => (
            <li key={each.schedule}>
              <span class="grow">
                <Link to={`/operations/schedules?edit=${encodeURIComponent(each.schedule)}`}>{each.schedule}</Link>
                <span class="quiet"> {each.path}</span>
                {each.last_execution && (
                  <div class="quiet">
                    last: <Link to={`/executions/${each.last_execution}`}>{each.last_status}</Link>
                    {each.last_late_s !== null && <span class={each.last_late_s > 60 ? "wrong" : ""}>, started {duration(each.last_late_s * 1000)} late</span>}
                  </div>
                )}
              </span>
              <Time at={each.next_at} />
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}

/** Queue and workers over days. */
function LoadHistory({ days }: { days: string }) {
  const { value } = useFetch<{ samples: Load[] }>("/api/history/load", { days }, 60_000);
  const samples = value?.samples ?? [];
  const times = useMemo(() => samples.map((each) => Date.parse(each.at)), [value]);
  if (samples.length < 2) return null;
  const every = Math.max(300_000, (Number(days) * 86_400_000) / 672);
  return (
    <section class="charts" aria-label="Load">
      <Chart title="Queue" unit="runs waiting, maximum" times={times} every={every} series={[{ name: "waiting", colour: "wait", values: samples.map((each) => each.queue_depth), area: true }]} />
      <Chart
        title="Workers"
        unit="maximum"
        times={times}
        every={every}
        series={[
          { name: "workers", colour: "run", values: samples.map((each) => each.workers), area: true },
          { name: "slots in use", colour: "ok", values: samples.map((each) => each.leases) },
          { name: "slots", colour: "quiet", values: samples.map((each) => each.slots), dashed: true },
        ]}
      />
    </section>
  );
}
