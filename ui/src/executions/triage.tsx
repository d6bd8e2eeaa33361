/** Many executions at once: how many, when, and why they failed. */
import { useFetch } from "../common/fetch";
import { setQuery } from "../common/router";
import { duration, exactly, shortTime, Time } from "../common/times";
import { paramsOf, type Filter, type Row } from "./data";

export interface Statistics {
  total: number;
  statuses: Record<string, number>;
  success_rate: number | null;
  p50_ms: number | null;
  p95_ms: number | null;
  causes: { cause: string; count: number; newest: string; example: string | null; last_at: string; paths: string[] }[];
  more_causes: number;
  histogram: { at: number; until: number; success?: number; failed?: number; other?: number }[];
  newest: Row[];
}

const POLL = 5000;

function useStatistics(filter: Filter) {
  return useFetch<Statistics>("/api/executions/statistics", paramsOf(filter), POLL);
}

/** Total, success rate, durations, a histogram, and failures grouped by cause. */
export function Triage({ filter }: { filter: Filter }) {
  const { value } = useStatistics(filter);
  if (!value || !value.total) return null;
  const failed = value.statuses.failed ?? 0;
  return (
    <section class="card triage" aria-label="Summary">
      <div class="triage-facts">
        <span class="number">
          <strong>{value.total.toLocaleString()}</strong> {value.total === 1 ? "execution" : "executions"}
        </span>
        {value.success_rate !== null && <span class="number">{percent(value.success_rate)} succeeded</span>}
        {value.p50_ms !== null && (
          <span class="number" title="Of successful executions">
            p50 {duration(value.p50_ms)}, p95 {duration(value.p95_ms!)}
          </span>
        )}
      </div>
      <Histogram bars={value.histogram} />
      {failed > 0 && (
        <details class="causes" open={filter.status.includes("failed")}>
          <summary>
            {failed.toLocaleString()} {failed === 1 ? "failure" : "failures"}, {(value.causes.length + value.more_causes).toLocaleString()} {value.causes.length + value.more_causes === 1 ? "cause" : "causes"}
          </summary>
          <ul class="plain">
            {value.causes.map((each) => (
              <li key={each.cause}>
                <span class="number count">{each.count.toLocaleString()}×</span>
                <button type="button" class="link cause" onClick={() => setQuery({ error: each.cause, status: "failed" })} title={each.example ?? undefined}>
                  {each.cause}
                </button>
                <span class="quiet">
                  {each.paths.join(", ")} · last <Time at={each.last_at} />
                </span>
              </li>
            ))}
          </ul>
        </details>
      )}
    </section>
  );
}

export const percent = (share: number) => `${(100 * share).toFixed(share > 0.995 && share < 1 ? 2 : share === 1 ? 0 : 1)} %`;

/** Executions over time; a bar selects its range. */
export function Histogram({ bars }: { bars: Statistics["histogram"] }) {
  const most = Math.max(1, ...bars.map((bar) => (bar.success ?? 0) + (bar.failed ?? 0) + (bar.other ?? 0)));
  if (!bars.length) return null;
  return (
    <div class="histogram" role="group" aria-label="Executions over time">
      {bars.map((bar) => {
        const total = (bar.success ?? 0) + (bar.failed ?? 0) + (bar.other ?? 0);
        const words = `${shortTime(bar.at)}: ${total} executions${bar.failed ? `, ${bar.failed} with an error` : ""}`;
        return (
          <button key={bar.at} type="button" disabled={!total} title={words} aria-label={words} onClick={() => setQuery({ range: `${bar.at}-${bar.until}` })}>
            {bar.failed ? <u class="failed" style={{ height: `${(100 * bar.failed) / most}%` }} /> : null}
            {bar.other ? <u class="other" style={{ height: `${(100 * bar.other) / most}%` }} /> : null}
            {bar.success ? <u style={{ height: `${(100 * bar.success) / most}%` }} /> : null}
          </button>
        );
      })}
    </div>
  );
}

/** The newest executions as bars: height is the duration, colour the status. */
export function Bars({ rows, onOpen }: { rows: Row[]; onOpen: (id: string) => void }) {
  const longest = Math.max(1, ...rows.map((row) => row.duration_ms ?? 0));
  return (
    <div class="run-bars" role="group" aria-label={`Last ${rows.length} executions`}>
      {[...rows].reverse().map((row) => {
        const words = `${row.status}, ${row.duration_ms === null ? "running" : duration(row.duration_ms)}, ${exactly(row.started_at).split("\n")[1].slice(0, 16).replace("T", " ")}`;
        return (
          <button key={row.execution_id} type="button" class={row.status} title={words} aria-label={words} onClick={() => onOpen(row.execution_id)}>
            <u style={{ height: `${Math.max(8, (100 * (row.duration_ms ?? longest)) / longest)}%` }} />
          </button>
        );
      })}
    </div>
  );
}
