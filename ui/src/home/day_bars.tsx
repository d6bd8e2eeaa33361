/** Executions per day by status; a bar opens the list of that day. */
import { go } from "../common/router";

export interface Day {
  day: string;
  [status: string]: string | number;
}

const label = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", timeZone: "UTC" });
const KINDS: [string, string[]][] = [
  ["failed", ["failed"]],
  ["other", ["running", "waiting", "paused", "pending", "cancelled"]],
  ["success", ["success"]],
];

export function DayBars({ days, path }: { days: Day[]; path?: string }) {
  const count = (day: Day, statuses: string[]) => statuses.reduce((sum, each) => sum + Number(day[each] ?? 0), 0);
  const totals = days.map((day) => KINDS.reduce((sum, [, statuses]) => sum + count(day, statuses), 0));
  const most = Math.max(1, ...totals);
  const every = Math.ceil(days.length / 10);
  return (
    <div class="day-bars" role="group" aria-label="Executions per day">
      {days.map((day, at) => {
        const start = Date.parse(day.day);
        const failed = Number(day.failed ?? 0);
        const words = `${label.format(start)}: ${totals[at].toLocaleString()} executions${failed ? `, ${failed.toLocaleString()} failed` : ""}`;
        return (
          <div key={day.day}>
            <button type="button" disabled={!totals[at]} title={words} aria-label={words} onClick={() => go(`/executions?range=${start}-${start + 86_400_000}${path ? `&path=${encodeURIComponent(path)}` : ""}`)}>
              {KINDS.map(([kind, statuses]) => {
                const number = count(day, statuses);
                return number ? <u key={kind} class={kind} style={{ height: `${(100 * number) / most}%` }} /> : null;
              })}
            </button>
            <span class="quiet" aria-hidden="true">
              {(days.length - 1 - at) % every === 0 ? label.format(start) : ""}
            </span>
          </div>
        );
      })}
    </div>
  );
}
