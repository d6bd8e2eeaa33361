/** The history of one playbook: success rate, durations, last executions, executions per day, durations of steps. */
import { useFetch } from "../common/fetch";
import { go, Link } from "../common/router";
import { duration, Time } from "../common/times";
import { Bars, percent } from "../executions/triage";
import type { Row } from "../executions/data";
import { DayBars, type Day } from "../home/day_bars";

interface StepTrend {
  step: string;
  executions: string[];
  durations_ms: (number | null)[];
  p50_ms: number;
  last_ms: number;
}

interface HistoryData {
  days: Day[];
  total: number;
  statuses: Record<string, number>;
  deleted: number;
  success_rate: number | null;
  p50_ms: number | null;
  p95_ms: number | null;
  newest: Row[];
  steps: StepTrend[];
}

interface Schedule {
  name: string;
  path: string;
  paused: boolean;
  next_at: string | null;
}

export function History({ path }: { path: string }) {
  const { value } = useFetch<HistoryData>("/api/history/playbook", { path, days: 30 }, 5000);
  const { value: schedules } = useFetch<{ items: Schedule[] }>("/api/schedules", { limit: 1000 }, 30_000);
  if (!value || !(value.total || value.newest.length)) return null;
  const next = schedules?.items.filter((each) => each.path === path && each.next_at && !each.paused) ?? [];
  const failed = value.statuses.failed ?? 0;
  return (
    <>
      <section class="card history" aria-label="History">
        <div class="triage-facts">
          <span class="number">
            <strong>{value.total.toLocaleString()}</strong> {value.total === 1 ? "execution" : "executions"} in 30 days
          </span>
          {value.success_rate !== null && <span class="number">{percent(value.success_rate)} succeeded</span>}
          {value.p50_ms !== null && (
            <span class="number" title="Of successful executions">
              p50 {duration(value.p50_ms)}, p95 {duration(value.p95_ms!)}
            </span>
          )}
          {failed > 0 && (
            <Link to={`/executions?path=${encodeURIComponent(path)}&status=failed`}>
              {failed.toLocaleString()} {failed === 1 ? "failure" : "failures"}
            </Link>
          )}
          {value.deleted > 0 && <span class="quiet">{value.deleted.toLocaleString()} deleted by retention</span>}
          {next.map((each) => (
            <span key={each.name}>
              next run <Time at={each.next_at} /> <span class="quiet">({each.name})</span>
            </span>
          ))}
        </div>
        <Bars rows={value.newest} onOpen={(id) => go(`/executions/${id}`)} />
      </section>
      <div class="history-columns">
        <section class="card pad" aria-label="Executions per day">
          <h2>Executions per day</h2>
          <DayBars days={value.days} path={path} />
        </section>
        {value.steps.length > 0 && <Steps steps={value.steps} />}
      </div>
    </>
  );
}

function Steps({ steps }: { steps: StepTrend[] }) {
  const slowest = [...steps].sort((one, other) => other.p50_ms - one.p50_ms);
  return (
    <section class="card step-trends" aria-label="Durations of steps" tabIndex={0}>
      <table class="list">
        <thead>
          <tr>
            <th>Step</th>
            <th>Last {steps[0].executions.length} executions</th>
            <th class="right">p50</th>
            <th class="right">Last</th>
          </tr>
        </thead>
        <tbody>
          {slowest.map((each) => (
            <tr key={each.step}>
              <td class="mono">{each.step}</td>
              <td>
                <Spark trend={each} />
              </td>
              <td class="right number">{duration(each.p50_ms)}</td>
              <td class={`right number ${slower(each) ? "wrong" : ""}`}>{duration(each.last_ms)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

/** The last run took clearly longer than usual. */
const slower = (each: StepTrend) => each.last_ms > 2 * each.p50_ms && each.last_ms - each.p50_ms > 100;

const WIDTH = 160;
const HEIGHT = 24;

/** The durations as a line; executions in which the step did not end are gaps. */
function Spark({ trend }: { trend: StepTrend }) {
  const values = trend.durations_ms;
  const most = Math.max(1, ...values.map((each) => each ?? 0));
  const x = (at: number) => 3 + (values.length < 2 ? WIDTH - 6 : (at / (values.length - 1)) * (WIDTH - 6));
  const y = (value: number) => HEIGHT - 3 - (value / most) * (HEIGHT - 6);
  let line = "";
  values.forEach((each, at) => {
    if (each !== null) line += `${line && values[at - 1] !== null ? "L" : "M"}${x(at).toFixed(1)},${y(each).toFixed(1)}`;
  });
  const last = values.length - 1;
  const words = `Durations of ${trend.step}: median ${duration(trend.p50_ms)}, last ${duration(trend.last_ms)}, longest ${duration(most)}`;
  return (
    <svg class="spark" width={WIDTH} height={HEIGHT} role="img" aria-label={words}>
      <title>{words}</title>
      <path d={line} />
      {values[last] !== null && <circle class={slower(trend) ? "up" : ""} cx={x(last)} cy={y(values[last]!)} r="2.5" />}
    </svg>
  );
}
